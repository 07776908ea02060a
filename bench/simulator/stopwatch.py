"""A stopwatch around functions: when each call began, how long it took, and on which thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Call(NamedTuple):
    """Microseconds of the performance counter; `thread`: its identifier."""

    began_us: float
    took_us: float
    thread: int


@dataclass(slots=True)
class Stopwatch:
    """How often something was called from outside, and how long that took, by name."""

    calls: dict[str, list[Call]] = field(default_factory=dict)

    def watch(self, owner: object, name: str, *, alias: str = "") -> None:
        """Writes down every call of `owner`'s method `name` from now on."""
        setattr(owner, name, self.timed(alias or name, getattr(owner, name)))

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, each call of which is written down."""
        calls = self.calls.setdefault(name, [])

        def call(*args: Any, **named: Any) -> Any:
            began_s = time.perf_counter()
            try:
                return function(*args, **named)
            finally:
                calls.append(
                    Call(
                        began_s * 1e6, (time.perf_counter() - began_s) * 1e6, threading.get_ident()
                    )
                )

        return call

    def total_us(self, name: str, thread: int | None = None) -> float:
        """Returns how long all calls of `name` took, on one thread or on all."""
        return sum(
            call.took_us for call in self.calls.get(name, ()) if thread in (None, call.thread)
        )

    def mean_us(self, name: str) -> float:
        """Returns how long a call of `name` took; 0 where there was none."""
        return self.total_us(name) / max(1, len(self.calls.get(name, ())))

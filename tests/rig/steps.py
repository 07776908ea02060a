"""Counts the steps from a record to its committed result, and simulates a kill before any step.

`Steps` is one run of a process. A call through `watched` is a step. The kill replaces the chosen
call; after it, no thread takes another step. Wrap consumer, producer, stage and in-flight work, run
the loop, begin a new run when `is_killed`, and compare the committed results with those of a run
without a kill.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

T = TypeVar("T")

CONSUMER = frozenset({"subscribe", "poll", "commit", "commit_now", "pause", "close"})
LISTENER = frozenset({"assigned", "revoked"})
PRODUCER = frozenset({"start", "begin", "produce", "send_offsets", "commit", "abort", "close"})
STAGE = frozenset({"start", "assigned", "offer", "tick", "revoke", "drain", "close"})
SINK = frozenset({"done", "hint", "refuse"})
IN_FLIGHT = frozenset({"assign", "take", "revoke", "complete", "committed"})
"""The calls of each seam that are steps: those that change something."""


class KilledError(BaseException):
    """The process was killed before a step. `except Exception` does not catch it."""


@contextmanager
def silent_deaths() -> Iterator[None]:
    """Suppresses the reports of killed threads."""
    report = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if not issubclass(args.exc_type, KilledError):
            report(args)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = report


class Steps:
    """The steps of one run, by name: `producer.commit`. Thread-safe."""

    def __init__(self, kill_before: str | None = None, *, nth: int = 1) -> None:
        """`nth`: the step of that name to kill before, from 1."""
        self._kill_before = kill_before
        self._nth = nth
        self._lock = threading.Lock()
        self.taken: Counter[str] = Counter()
        self.is_killed = False

    def take(self, name: str) -> None:
        """Counts a step. Raises `KilledError` if the process is dead, or is killed now."""
        with self._lock:
            if (
                not self.is_killed
                and name == self._kill_before
                and self.taken[name] + 1 == self._nth
            ):
                self.is_killed = True
            if self.is_killed:
                raise KilledError(f"killed before {name}")
            self.taken[name] += 1


def watched(target: T, steps: Steps, seam: str, calls: Collection[str]) -> T:
    """Returns `target` with `calls` counted as steps `SEAM.CALL`; other attributes unchanged."""
    return cast(T, _WatchedCalls(target, steps, seam, calls))


class _WatchedCalls:
    def __init__(self, target: Any, steps: Steps, seam: str, calls: Collection[str]) -> None:
        self._target = target
        self._steps = steps
        self._seam = seam
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name not in self._calls:
            return found

        def call(*args: Any, **named: Any) -> Any:
            self._steps.take(f"{self._seam}.{name}")
            return found(*args, **named)

        return call

"""Keeps processes going: starts again what was killed or ended by itself, lets go on what was
paused, each in its time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

RESTART_S = 1.0
"""How long what ended by itself stays away, as under any supervisor."""


class Target(Protocol):
    """A process that can be struck."""

    @property
    def is_running(self) -> bool:
        """Whether it lives, paused or not."""
        ...

    def kill(self) -> None:
        """Ends it as a crash does."""
        ...

    def pause(self) -> None:
        """Stops it in the middle of what it does."""
        ...

    def resume(self) -> None:
        """Lets it go on."""
        ...


class EndedByItself(msgspec.Struct, frozen=True, kw_only=True):
    """A process that ended without being killed: fenced by whoever took its place over, or
    broken.
    """

    name: str
    at_s: float


@dataclass(slots=True)
class Kept:
    """A process and how it is. `until_s`: when it is started or let go on."""

    name: str
    process: Target
    start: Callable[[], None]
    is_up: Callable[[], bool]
    state: Literal["up", "paused", "dead", "coming"] = "up"
    until_s: float = 0.0
    struck_s: float = 0.0


@dataclass(slots=True)
class Keeper:
    """All processes of a run. Times are seconds of the run; nothing blocks for longer than a look
    at a process.
    """

    kept: Mapping[str, Kept]
    ended: list[EndedByItself] = field(default_factory=list)
    back_after_s: dict[str, list[float]] = field(default_factory=dict)

    def is_up(self, name: str) -> bool:
        """Whether this one is there and was not struck since."""
        return self.kept[name].state == "up"

    def killed(self, name: str, now_s: float, *, away_s: float) -> None:
        """Notes that this one was killed; it is started again after `away_s`."""
        self._away(name, "dead", now_s, away_s)

    def paused(self, name: str, now_s: float, *, away_s: float) -> None:
        """Notes that this one was paused; it goes on after `away_s`."""
        self._away(name, "paused", now_s, away_s)

    def _away(
        self, name: str, state: Literal["dead", "paused"], now_s: float, away_s: float
    ) -> None:
        kept = self.kept[name]
        kept.state, kept.struck_s, kept.until_s = state, now_s, now_s + away_s

    def step(self, now_s: float) -> None:
        """Brings back what is due, notes what is up again, and what ended by itself."""
        for kept in self.kept.values():
            if kept.state == "paused" and now_s >= kept.until_s:
                kept.process.resume()
                kept.state = "coming"
            elif kept.state == "dead" and now_s >= kept.until_s:
                kept.start()
                kept.state = "coming"
            elif kept.state in ("up", "coming") and not kept.process.is_running:
                self.ended.append(EndedByItself(name=kept.name, at_s=now_s))
                kept.struck_s = kept.struck_s if kept.state == "coming" else now_s
                kept.state, kept.until_s = "dead", now_s + RESTART_S
            elif kept.state == "coming" and kept.is_up():
                kept.state = "up"
                self.back_after_s.setdefault(kept.name, []).append(now_s - kept.struck_s)

    def all_up(self) -> bool:
        """Whether nothing is away."""
        return all(kept.state == "up" for kept in self.kept.values())

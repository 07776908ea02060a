"""Which waiting prompt is sent next: the protocol, and the order by priority, deadline, arrival."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A prompt as its order sees it. Lower `priority` is sooner; times are epoch microseconds."""

    id: int
    arrival_us: int
    priority: int = 0
    deadline_us: int | None = None

    def is_late(self, now_us: int) -> bool:
        """Returns whether the deadline has passed."""
        return self.deadline_us is not None and now_us >= self.deadline_us


class Order(Protocol):
    """Chooses the next prompt. Pure: the choice does not depend on the sequence of `waiting`."""

    def first(self, waiting: Iterable[Prompt]) -> Prompt:
        """Returns one of `waiting`, which contains at least one prompt."""
        ...


class ArrivalOrder:
    """By priority, then deadline (none is last), then arrival, then id. O(waiting) a choice."""

    def first(self, waiting: Iterable[Prompt]) -> Prompt:
        """Returns the most urgent prompt."""
        return min(waiting, key=_urgency)


def _urgency(prompt: Prompt) -> tuple[int, bool, int, int, int]:
    return (
        prompt.priority,
        prompt.deadline_us is None,
        prompt.deadline_us or 0,
        prompt.arrival_us,
        prompt.id,
    )

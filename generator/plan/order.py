"""Which waiting prompt goes next: the protocol, and arrival order within priorities and
deadlines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A prompt as its order sees it. `priority`: lower is sooner; `deadline_us`, `arrival_us`:
    epoch microseconds.
    """

    id: int
    arrival_us: int
    priority: int = 0
    deadline_us: int | None = None


class Order(Protocol):
    """Chooses the next prompt. Pure: the same prompts give the same choice, in whatever sequence
    they come.
    """

    def first(self, waiting: Iterable[Prompt]) -> Prompt:
        """Returns one of `waiting`, which holds at least one prompt."""
        ...


class ArrivalOrder:
    """By priority, then deadline (those with none last), then arrival; ties go to the lower id.
    O(waiting) a choice.
    """

    def first(self, waiting: Iterable[Prompt]) -> Prompt:
        """Returns the prompt that has waited longest among the most urgent."""
        return min(waiting, key=_urgency)


def _urgency(prompt: Prompt) -> tuple[int, bool, int, int, int]:
    return (
        prompt.priority,
        prompt.deadline_us is None,
        prompt.deadline_us or 0,
        prompt.arrival_us,
        prompt.id,
    )

"""Selects letters by place, reason and age. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from carpool.dead_letters.letter import DeadLetter

Place = tuple[str, int, int]
"""Topic, partition and offset of a letter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The conditions of the selected letters; an empty field or None selects all.

    Bounds are inclusive; times, in epoch milliseconds, are of the writing of the letter. `marked`:
    also letters that were replayed or dropped.
    """

    topics: frozenset[str] = frozenset()
    places: frozenset[Place] = frozenset()
    reasons: frozenset[str] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None
    marked: bool = False

    @property
    def is_narrow(self) -> bool:
        """Whether anything but topics is given, so that not all letters are selected."""
        has_age = self.since_ms is not None or self.until_ms is not None
        return bool(self.places or self.reasons) or has_age

    def takes_topic(self, topic: str) -> bool:
        """Returns whether letters of this dead-letter topic may be selected."""
        named = self.topics | {place[0] for place in self.places}
        return not named or topic in named

    def takes(self, letter: DeadLetter) -> bool:
        """Returns whether this letter is selected."""
        at = letter.place
        return (
            self.takes_topic(at.topic)
            and (not self.places or (at.topic, at.partition, at.offset) in self.places)
            and (self.since_ms is None or at.timestamp_ms >= self.since_ms)
            and (self.until_ms is None or at.timestamp_ms <= self.until_ms)
            and (not self.reasons or letter.reason in self.reasons)
            and (self.marked or letter.mark is None)
        )

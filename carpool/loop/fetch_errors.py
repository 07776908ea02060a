"""Says which partitions cannot be read now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from carpool.kafka.records import TopicPartition

RECENT_US = 5_000_000
"""A partition without an error for so long can be read: a failing fetch is repeated each half
second.
"""
ERRORS_MIN = 2
"""One error is passing: a leader moves, or a connection breaks."""


@dataclass(slots=True)
class _FailingPartition:
    error: str
    last_us: int
    errors: int


class FetchErrors:
    """Errors of fetches by partition. Times are epoch microseconds. Not thread-safe."""

    def __init__(self) -> None:
        self._failing: dict[TopicPartition, _FailingPartition] = {}
        self._lasting: dict[TopicPartition, str] = {}

    def failed(self, at: TopicPartition, error: str, now_us: int, *, lasts: bool) -> None:
        """Notes that a fetch failed; `error` in words. `lasts`: no record will come any more."""
        if lasts:
            self._lasting[at] = error
            return
        failing = self._failing.get(at)
        recent = failing is not None and now_us - failing.last_us < RECENT_US
        errors = failing.errors + 1 if failing is not None and recent else 1
        self._failing[at] = _FailingPartition(error, now_us, errors)

    def read(self, at: TopicPartition) -> None:
        """Notes that a record of this partition was read."""
        self._failing.pop(at, None)

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets these partitions."""
        for at in partitions:
            self._failing.pop(at, None)
            self._lasting.pop(at, None)

    def ended(self) -> Set[TopicPartition]:
        """Returns the partitions of which no record will come any more."""
        return self._lasting.keys()

    def reasons(self, now_us: int) -> list[str]:
        """Returns one sentence for each partition that cannot be read."""
        passing = [
            f"{at.topic}[{at.partition}] cannot be read: {each.error}"
            for at, each in sorted(self._failing.items())
            if each.errors >= ERRORS_MIN and now_us - each.last_us < RECENT_US
        ]
        return [*self._lasting.values(), *passing]

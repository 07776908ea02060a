"""Decides whether a service stalls, and which partitions cannot be read now. Pure.

A service stalls while records wait, and none is accepted or finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from carpool.kafka.records import TopicPartition

RECENT_US = 5_000_000
"""A partition without an error for so long can be read: a failing fetch is repeated each half
second.
"""
ERRORS_MIN = 2
"""One error is passing: a leader moves, or a connection breaks."""


@dataclass(slots=True)
class _WaitingRecords:
    """Records of a partition that are not accepted yet.

    `moved_us`: last time at which a record was accepted, or none waited. `newer_than_us`: all
    waiting records were written after this time: the timestamp of the last accepted record, or the
    last time at which none waited.
    """

    moved_us: int
    newer_than_us: int
    waiting: int = 0


class StallDetector:
    """Watches the assigned partitions. Times are epoch microseconds. Not thread-safe."""

    def __init__(self, *, stalled_after_us: int, now_us: int) -> None:
        """`stalled_after_us`: how long records may wait while no partition moves."""
        self._stalled_after_us = stalled_after_us
        self._partitions: dict[TopicPartition, _WaitingRecords] = {}
        self.last_us = now_us
        """When a record was last taken in or finished, or none was waiting."""

    def assigned(self, partitions: Iterable[TopicPartition], now_us: int) -> None:
        """Adds these partitions. The age of their records is unknown until one is accepted."""
        for at in partitions:
            self._partitions[at] = _WaitingRecords(moved_us=now_us, newer_than_us=now_us)
        self.last_us = now_us

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets these partitions."""
        for at in partitions:
            self._partitions.pop(at, None)

    def took(self, at: TopicPartition, written_us: int, now_us: int) -> None:
        """Notes an accepted record. `written_us`: its time stamp."""
        self.last_us = max(self.last_us, now_us)
        partition = self._partitions.get(at)
        if partition is not None:
            partition.moved_us = now_us
            partition.newer_than_us = written_us

    def finished(self, now_us: int) -> None:
        """Notes finished work."""
        self.last_us = max(self.last_us, now_us)

    def waits(self, waiting: Mapping[TopicPartition, int], now_us: int) -> None:
        """Notes the number of records that wait in each partition now."""
        for at, records in waiting.items():
            partition = self._partitions.get(at)
            if partition is None:
                continue
            partition.waiting = records
            if records == 0:
                partition.moved_us = partition.newer_than_us = now_us
        if not any(partition.waiting for partition in self._partitions.values()):
            self.last_us = max(self.last_us, now_us)

    def lag_us(self, now_us: int) -> int:
        """Returns an upper bound of how long the oldest waiting record has waited; 0: none waits.

        An unread record is only known to be younger than the record before it.
        """
        ages = [now_us - each.newer_than_us for each in self._partitions.values() if each.waiting]
        return max(0, max(ages, default=0))

    def moved_us(self) -> dict[TopicPartition, int]:
        """Returns the last time at which each partition moved, or no record waited in it."""
        return {at: partition.moved_us for at, partition in self._partitions.items()}

    def stalled(self, now_us: int) -> str | None:
        """Returns which partition waits, in words; None where any moves or no record waits.

        One partition may wait while another moves: that is no stall.
        """
        idle_us = now_us - self.last_us
        waiting = {
            at: each.waiting for at, each in sorted(self._partitions.items()) if each.waiting
        }
        if not waiting or idle_us < self._stalled_after_us:
            return None
        most = max(waiting, key=lambda at: waiting[at])
        others = sum(waiting.values()) - waiting[most]
        more = f" ({others} more in other partitions)" if others else ""
        return (
            f"{most.topic}[{most.partition}] has {waiting[most]} records waiting{more}, and "
            f"nothing was taken in or finished for {idle_us // 1_000_000} s"
        )


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

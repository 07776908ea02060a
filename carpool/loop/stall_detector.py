"""Does a service move? What waits in each partition, for how long, and when something was last
taken in or finished.

A pure state machine, of the polling thread: partitions and epoch microseconds in, lag and words
out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from carpool.kafka.records import TopicPartition


@dataclass(slots=True)
class _Partition:
    """`waiting`: records not taken in yet. `moved_us`: when one was last taken in, or none was
    waiting. `newer_than_us`: what waits was written after this: the timestamp of the last record
    taken in, or the last moment at which nothing waited.
    """

    moved_us: int
    newer_than_us: int
    waiting: int = 0


class StallDetector:
    """What moves and what stands still, over the partitions that are assigned."""

    def __init__(self, *, stalled_after_us: int, now_us: int) -> None:
        """`stalled_after_us`: how long records may wait while nothing at all moves."""
        self._stalled_after_us = stalled_after_us
        self._partitions: dict[TopicPartition, _Partition] = {}
        self.last_us = now_us
        """When something was last taken in, finished, or nothing was waiting."""

    def assigned(self, partitions: Iterable[TopicPartition], now_us: int) -> None:
        """Begins with these partitions. How long their records have waited is known once one of
        them is taken in.
        """
        for at in partitions:
            self._partitions[at] = _Partition(moved_us=now_us, newer_than_us=now_us)
        self.last_us = now_us

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets these partitions."""
        for at in partitions:
            self._partitions.pop(at, None)

    def took(self, at: TopicPartition, timestamp_ms: int, now_us: int) -> None:
        """Notes that a record was taken in. `timestamp_ms`: its own, 0 where it has none."""
        self.last_us = max(self.last_us, now_us)
        partition = self._partitions.get(at)
        if partition is not None:
            partition.moved_us = now_us
            partition.newer_than_us = timestamp_ms * 1_000 or now_us

    def finished(self, now_us: int) -> None:
        """Notes that work was finished for good."""
        self.last_us = max(self.last_us, now_us)

    def waits(self, waiting: Mapping[TopicPartition, int], now_us: int) -> None:
        """Notes how many records wait in each partition now."""
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
        """Returns how long the oldest record that waits has waited, at most; 0 where none does.

        Of a record that was not read only this is known: it is younger than the one before it.
        """
        ages = [now_us - each.newer_than_us for each in self._partitions.values() if each.waiting]
        return max(0, max(ages, default=0))

    def moved_us(self) -> dict[TopicPartition, int]:
        """Returns when each partition last moved, or had nothing waiting."""
        return {at: partition.moved_us for at, partition in self._partitions.items()}

    def stalled(self, now_us: int) -> str | None:
        """Returns what stands still, in words, or None where something moves or nothing waits.

        One partition may wait while another is worked off: only when nothing moves at all does the
        service stand still.
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

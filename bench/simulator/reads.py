"""The reads of the searcher on virtual time: demands go to the disk before prefetches."""

from __future__ import annotations

from collections.abc import Mapping

from bench.simulator.disk import SimulatedDisk
from searcher.plan.slices import SliceId


class SimulatedReads:
    """Reads of slices. Time moves forward by `advance`; all else happens at the present time."""

    def __init__(
        self,
        size_bytes: Mapping[SliceId, int],
        disk: SimulatedDisk,
        *,
        in_flight_bytes: int,
        ahead_max: int,
    ) -> None:
        """`in_flight_bytes`, `ahead_max`: see `searcher.memory.cluster_memory.FlightLimits`."""
        self._size_bytes = size_bytes
        self._disk = disk
        self._in_flight_bytes_max = in_flight_bytes
        self._ahead_max = ahead_max
        self._demands: dict[SliceId, None] = {}
        self._prefetches: dict[SliceId, None] = {}
        self._in_flight: dict[SliceId, bool] = {}  # whether it is a prefetch
        self._ended: list[SliceId] = []
        self.bytes_read = 0

    def begin(self, cluster: SliceId, *, is_prefetch: bool) -> None:
        """Queues a read of a slice that is not resident."""
        (self._prefetches if is_prefetch else self._demands)[cluster] = None
        self.bytes_read += self._size_bytes[cluster]
        self._submit()

    def promote(self, cluster: SliceId) -> None:
        """Makes a prefetch a demand."""
        if cluster in self._prefetches:
            del self._prefetches[cluster]
            self._demands[cluster] = None
        elif cluster in self._in_flight:
            self._in_flight[cluster] = False
        self._submit()

    def next_us(self) -> float | None:
        """Returns when something happens next, or None when nothing will."""
        return self._disk.next_us()

    def advance(self, now_us: float) -> None:
        """Moves time to `now_us`."""
        while (moment_us := self._disk.next_us()) is not None and moment_us <= now_us:
            self._disk.advance(moment_us)
            for token in self._disk.take_ended():
                del self._in_flight[SliceId(token)]
                self._ended.append(SliceId(token))
            self._submit()
        self._disk.advance(now_us)

    def take_ended(self) -> list[SliceId]:
        """Returns the slices whose reads ended and were not returned before, in order."""
        ended, self._ended = self._ended, []
        return ended

    def _submit(self) -> None:
        while self._has_room() and self._demands:
            self._give(self._demands, is_prefetch=False)
        while (
            self._has_room()
            and self._prefetches
            and sum(self._in_flight.values()) < self._ahead_max
        ):
            self._give(self._prefetches, is_prefetch=True)

    def _has_room(self) -> bool:
        begun_bytes = sum(self._size_bytes[cluster] for cluster in self._in_flight)
        return begun_bytes < self._in_flight_bytes_max

    def _give(self, queued: dict[SliceId, None], *, is_prefetch: bool) -> None:
        cluster = next(iter(queued))
        del queued[cluster]
        self._in_flight[cluster] = is_prefetch
        self._disk.give(cluster, self._size_bytes[cluster])

"""A disk on virtual time: reads in service share its bandwidth, the others wait in order."""

from __future__ import annotations

import heapq
from collections import deque

import msgspec

EPSILON_BYTES = 1e-6


class DiskCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Three measured numbers.

    A read is done `overhead_us` after its last byte; all reads together get `bytes_per_us`. The
    oldest reads of at most `together_bytes` in total, and one at least, are in service at equal
    rates; the others wait. A disk that serves strictly in order has 1.
    """

    overhead_us: float
    bytes_per_us: float
    together_bytes: int = 1


class SimulatedDisk:
    """Reads, named by tokens. Time moves forward by `advance`; reads begin at the present time."""

    def __init__(self, costs: DiskCosts) -> None:
        self._costs = costs
        self._now_us = 0.0
        self._waiting: deque[tuple[int, int]] = deque()  # token and size
        self._served: dict[int, float] = {}  # token to bytes left, oldest first
        self._size: dict[int, int] = {}
        self._ended: list[tuple[float, int]] = []  # when the read is done, token

    def give(self, token: int, size_bytes: int) -> None:
        """Begins a read."""
        self._waiting.append((token, size_bytes))
        self._serve()

    def next_us(self) -> float | None:
        """Returns when something happens next, or None when nothing will."""
        moments = [self._ended[0][0]] if self._ended else []
        if (end_us := self._next_last_byte_us()) is not None:
            moments.append(end_us)
        return min(moments, default=None)

    def advance(self, now_us: float) -> None:
        """Moves time to `now_us`."""
        while (end_us := self._next_last_byte_us()) is not None:
            moment_us = min(end_us, max(now_us, self._now_us))
            share = (moment_us - self._now_us) * self._costs.bytes_per_us / len(self._served)
            self._now_us = moment_us
            for token, left_bytes in [*self._served.items()]:
                self._served[token] = max(0.0, left_bytes - share)
            if end_us > now_us:
                break
            least = min(self._served.values()) + EPSILON_BYTES
            for token in [token for token, left in self._served.items() if left <= least]:
                del self._served[token], self._size[token]
                heapq.heappush(self._ended, (self._now_us + self._costs.overhead_us, token))
            self._serve()
        self._now_us = max(self._now_us, now_us)

    def take_ended(self) -> list[int]:
        """Returns the reads that are done by now and were not returned before, in order."""
        ended = []
        while self._ended and self._ended[0][0] <= self._now_us:
            ended.append(heapq.heappop(self._ended)[1])
        return ended

    def _next_last_byte_us(self) -> float | None:
        if not self._served:
            return None
        return (
            self._now_us + min(self._served.values()) * len(self._served) / self._costs.bytes_per_us
        )

    def _serve(self) -> None:
        while self._waiting:
            token, size_bytes = self._waiting[0]
            served_bytes = sum(self._size[other] for other in self._served)
            if self._served and served_bytes + size_bytes > self._costs.together_bytes:
                return
            self._waiting.popleft()
            self._served[token], self._size[token] = float(size_bytes), size_bytes

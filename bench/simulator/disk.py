"""A disk on virtual time: reads that are with it share its bandwidth, some side by side, the others
behind them.
"""

from __future__ import annotations

import heapq
from collections import deque

import msgspec

EPSILON_BYTES = 1e-6


class DiskCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Three measured numbers. A read is done `overhead_us` after its last byte; all reads together
    get `bytes_per_us`.

    `together_bytes`: the oldest reads that together have at most as many bytes, and one at least,
    are served side by side, at equal rates; the others wait. A disk that serves strictly in order
    has 1 here.
    """

    overhead_us: float
    bytes_per_us: float
    together_bytes: int = 1


class SimulatedDisk:
    """Reads, named by tokens. Time only moves forward, by `advance`; reads are given at the present
    time.
    """

    def __init__(self, costs: DiskCosts) -> None:
        self._costs = costs
        self._now_us = 0.0
        self._waiting: deque[tuple[int, int]] = deque()  # token and size
        self._served: dict[int, float] = {}  # token to bytes left, oldest first
        self._size: dict[int, int] = {}
        self._ended: list[tuple[float, int]] = []  # when the host hears of it, token
        self.busy_us = 0.0

    def give(self, token: int, size_bytes: int) -> None:
        """Begins a read."""
        self._waiting.append((token, size_bytes))
        self._serve()

    def next_us(self) -> float | None:
        """Returns when something happens next, None when there is nothing to do."""
        moments = [self._ended[0][0]] if self._ended else []
        if (end_us := self._next_through_us()) is not None:
            moments.append(end_us)
        return min(moments, default=None)

    def advance(self, now_us: float) -> None:
        """Moves time to `now_us`."""
        while (end_us := self._next_through_us()) is not None:
            moment_us = min(end_us, max(now_us, self._now_us))
            share = (moment_us - self._now_us) * self._costs.bytes_per_us / len(self._served)
            self.busy_us += moment_us - self._now_us
            self._now_us = moment_us
            for token, left_bytes in [*self._served.items()]:
                self._served[token] = max(0.0, left_bytes - share)
            if end_us > now_us:
                break
            least = min(self._served.values())
            for token in [
                token
                for token, left_bytes in self._served.items()
                if left_bytes <= least + EPSILON_BYTES
            ]:
                del self._served[token], self._size[token]
                heapq.heappush(self._ended, (self._now_us + self._costs.overhead_us, token))
            self._serve()
        self._now_us = max(self._now_us, now_us)

    def has_ended(self) -> bool:
        """Whether the host has heard of an end that it was not asked for so far."""
        return bool(self._ended) and self._ended[0][0] <= self._now_us

    def take_ended(self) -> list[int]:
        """Returns the reads of whose end the host has heard since it asked last, in order."""
        ended = []
        while self._ended and self._ended[0][0] <= self._now_us:
            ended.append(heapq.heappop(self._ended)[1])
        return ended

    def _next_through_us(self) -> float | None:
        """When the last byte of a read comes next."""
        if not self._served:
            return None
        return (
            self._now_us + min(self._served.values()) * len(self._served) / self._costs.bytes_per_us
        )

    def _serve(self) -> None:
        while self._waiting and (
            not self._served
            or sum(self._size[token] for token in self._served) + self._waiting[0][1]
            <= self._costs.together_bytes
        ):
            token, size_bytes = self._waiting.popleft()
            self._served[token], self._size[token] = float(size_bytes), size_bytes

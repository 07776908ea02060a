"""The queue of an engine: which read starts next, and which are in progress. It has no lock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from searcher.store.engine import BlockRead


class WaitingReads:
    """Demand reads and prefetches that wait, and reads in progress. Cost: O(1) a read."""

    def __init__(self, *, depth: int, prefetch_depth: int) -> None:
        assert depth >= 1, "an engine of depth 0 reads nothing"
        assert prefetch_depth >= 0, "a negative number of prefetches"
        self._depth = depth
        self._prefetch_depth = prefetch_depth
        self._demands: OrderedDict[int, BlockRead] = OrderedDict()
        self._prefetches: OrderedDict[int, BlockRead] = OrderedDict()
        self._started_us: dict[int, int] = {}
        self._prefetching: set[int] = set()
        self._given_up: set[int] = set()

    @property
    def with_kernel(self) -> int:
        """The number of reads in progress, including those given up."""
        return len(self._started_us)

    @property
    def given_up(self) -> int:
        """The number of reads that were given up and have not ended; at most `depth`."""
        return len(self._given_up)

    def put(self, reads: Sequence[BlockRead]) -> None:
        """Adds reads, after those of their kind."""
        for read in reads:
            (self._prefetches if read.is_prefetch else self._demands)[read.token] = read

    def take(self, now_us: int) -> BlockRead | None:
        """Returns the read to start now; None if none waits, or enough are in progress."""
        if self.with_kernel - self.given_up >= self._depth:
            return None
        if self._demands:
            token, read = self._demands.popitem(last=False)
        elif self._prefetches and len(self._prefetching) < self._prefetch_depth:
            token, read = self._prefetches.popitem(last=False)
            self._prefetching.add(token)
        else:
            return None
        assert token not in self._started_us, f"two reads with token {token}"
        self._started_us[token] = now_us
        return read

    def end(self, token: int, now_us: int) -> int:
        """Ends a read in progress; returns how long it took, in microseconds."""
        self._prefetching.discard(token)
        self._given_up.discard(token)
        return now_us - self._started_us.pop(token)

    def cancel(self, tokens: Sequence[int]) -> list[int]:
        """Removes reads that have not started; returns their tokens."""
        return [
            token
            for token in tokens
            if self._demands.pop(token, None) is not None
            or self._prefetches.pop(token, None) is not None
        ]

    def cancel_all(self) -> list[int]:
        """Removes all reads that have not started; returns their tokens."""
        return self.cancel([*self._demands, *self._prefetches])

    def promote(self, tokens: Sequence[int]) -> None:
        """Makes prefetches demand reads, also those in progress."""
        for token in tokens:
            self._prefetching.discard(token)
            read = self._prefetches.pop(token, None)
            if read is not None:
                self._demands[token] = read

    def give_up(self, tokens: Sequence[int]) -> None:
        """Does not count these reads in progress any more; at most `depth` of them."""
        for token in tokens:
            if token in self._started_us and self.given_up < self._depth:
                self._given_up.add(token)
                self._prefetching.discard(token)

    def started_before(self, before_us: int) -> tuple[int, ...]:
        """Returns the tokens of reads in progress that started before `before_us`."""
        return tuple(
            token for token, started_us in self._started_us.items() if started_us < before_us
        )

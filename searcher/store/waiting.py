"""Who is read next: the order of demands and prefetches, and who is with the kernel. No lock of its
own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from searcher.store.engine import BlockRead


class WaitingReads:
    """The books of an engine. Cost: O(1) a read."""

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
        """Reads that were taken and have not ended, those given up included."""
        return len(self._started_us)

    @property
    def given_up(self) -> int:
        """Reads that were given up and have not ended; at most `depth`."""
        return len(self._given_up)

    def put(self, reads: Sequence[BlockRead]) -> None:
        """Lines up reads behind those of their kind."""
        for read in reads:
            (self._prefetches if read.is_prefetch else self._demands)[read.token] = read

    def take(self, now_us: int) -> BlockRead | None:
        """Returns the read to give to the kernel now, None when there is none or the kernel has
        enough.
        """
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
        """The kernel is done with a read; returns how long it had it, in microseconds."""
        self._prefetching.discard(token)
        self._given_up.discard(token)
        return now_us - self._started_us.pop(token)

    def cancel(self, tokens: Sequence[int]) -> list[int]:
        """Drops what was not taken; returns its tokens."""
        return [
            token
            for token in tokens
            if self._demands.pop(token, None) is not None
            or self._prefetches.pop(token, None) is not None
        ]

    def cancel_all(self) -> list[int]:
        """Drops all that was not taken; returns its tokens."""
        return self.cancel([*self._demands, *self._prefetches])

    def promote(self, tokens: Sequence[int]) -> None:
        """Makes demands of prefetches, those that the kernel has included."""
        for token in tokens:
            self._prefetching.discard(token)
            read = self._prefetches.pop(token, None)
            if read is not None:
                self._demands[token] = read

    def give_up(self, tokens: Sequence[int]) -> None:
        """Makes room for others beside reads that do not end, for `depth` of them."""
        for token in tokens:
            if token in self._started_us and self.given_up < self._depth:
                self._given_up.add(token)
                self._prefetching.discard(token)

    def started_before(self, before_us: int) -> tuple[int, ...]:
        """Returns what was taken before `before_us` and has not ended."""
        return tuple(
            token for token, started_us in self._started_us.items() if started_us < before_us
        )

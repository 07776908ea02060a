"""The batches that the kernel has, and who wants them: they end, or are given up after a time.

What a reader of clusters, rows, codes or passages does not have to know of a disk that hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np

from carpool.clock import Clock
from carpool.errors import RetryableError
from searcher.store.page_reads import PageBatch, PageReads

READ_BYTES_MAX = 1 << 20
"""Of one read: large enough for a disk's full rate, small enough that many are done at a time."""
NO_MEMORY = (
    "there was no memory to read into: reads that never returned take it up. Check the disk; the "
    "queries that came meanwhile can be asked again"
)

Owner = TypeVar("Owner")


class ReadsInFlight(Generic[Owner]):
    """Batches in progress, each with its owner: any value of the caller. For one thread.

    `free(owner)` is called when the kernel does not use the memory of a batch any more: after the
    caller has taken a batch that ended, and when one that was given up ends after all.
    """

    def __init__(
        self, reads: PageReads, timeout_us: int, clock: Clock, free: Callable[[Owner], None]
    ) -> None:
        """A batch that the kernel has for longer than `timeout_us` is given up."""
        self._reads = reads
        self._timeout_us = timeout_us
        self._clock = clock
        self._free = free
        self._owners: dict[PageBatch[Any], Owner] = {}

    def __len__(self) -> int:
        """Returns the number of batches that are not given up."""
        return sum(not batch.is_given_up for batch in self._owners)

    @property
    def times_out_at_us(self) -> int | None:
        """When the oldest batch is given up; None while there is none."""
        moments = [batch.submitted_us for batch in self._owners if not batch.is_given_up]
        return min(moments) + self._timeout_us if moments else None

    def owners(self) -> list[Owner]:
        """Returns the owners of the batches that are not given up, oldest first."""
        return [owner for batch, owner in self._owners.items() if not batch.is_given_up]

    def stuck(self) -> list[Owner]:
        """Returns the owners of the batches that were given up and that the kernel still has."""
        return [owner for batch, owner in self._owners.items() if batch.is_given_up]

    def submit(self, batch: PageBatch[Any], owner: Owner) -> None:
        """Starts all reads of a batch. Does not block."""
        self._owners[batch] = owner
        self._reads.submit(batch)

    def ended(self) -> Iterator[tuple[PageBatch[Any], Owner]]:
        """Yields each batch once: when it has ended, or when it is given up. Does not block.

        `errors` has each read that has not filled its memory. The memory of a batch that ended is
        the caller's until the next one is asked for; what others of a batch that is given up read
        is there, too.
        """
        for batch in self._reads.poll():
            owner = self._owners.pop(batch)
            if not batch.is_given_up:
                yield batch, owner
            self._free(owner)
        before_us = self._clock.now_us() - self._timeout_us
        for batch, owner in tuple(self._owners.items()):
            if batch.submitted_us >= before_us or batch.is_given_up:
                continue
            unended = np.flatnonzero(batch.read_bytes < 0).tolist()
            batch.is_given_up = bool(unended)
            for position in unended:
                batch.errors[position] = timed_out(self._timeout_us)
            if unended:
                yield batch, owner

    def close(self, timeout_s: float) -> bool:
        """Closes the reads, and forgets the batches if all have ended: returns whether they have.

        Blocks up to `timeout_s`.
        """
        has_ended = self._reads.close(timeout_s)
        if has_ended:
            self._owners.clear()
        return has_ended


def timed_out(timeout_us: int) -> RetryableError:
    """Returns the error of a read that is given up."""
    return RetryableError(
        f"a read did not come within {timeout_us / 1_000_000:g} s: the disk hangs, or is too slow. "
        "Its memory stays out of use until the kernel returns it. Check the disk; if it is only "
        "slow, raise [searcher] read_timeout_ms"
    )

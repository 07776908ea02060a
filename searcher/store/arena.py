"""The arena: one block of memory that contains every cluster; no cluster is moved.

A cluster takes whole blocks: the smallest free run that is large enough, or several runs, largest
first. So less than one block for each cluster is unused. Cost: O(free runs) a call.
"""

from __future__ import annotations

import errno
import mmap
from bisect import bisect_left, insort
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from carpool.disk.pages import PAGE_ALIGNMENT_BYTES

BLOCK_BYTES_MAX = 1 << 20
BLOCKS_PER_CLUSTER = 128
FILL_BYTES = 256 << 20
"""Pages allocated in one system call, during which no other thread runs: 0.15 s on a VM."""
_MADV_POPULATE_WRITE = 23


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A contiguous piece of the arena."""

    offset_bytes: int
    size_bytes: int


Spans = tuple[Span, ...]


def choose_block_bytes(page_bytes: int, cluster_bytes_mean: int) -> int:
    """Returns the size of a block: whole pages, about 1/128 of the mean cluster, at most 1 MiB.

    Less than 0.5 % of the arena is unused in blocks. Smaller blocks would scatter clusters.
    """
    wanted_bytes = min(cluster_bytes_mean // BLOCKS_PER_CLUSTER, BLOCK_BYTES_MAX)
    return max(1, wanted_bytes // page_bytes) * page_bytes


class Arena:
    """Memory of `size_bytes`, rounded down to whole blocks. Not thread-safe. `view`: all of it."""

    def __init__(self, size_bytes: int, block_bytes: int) -> None:
        """Maps the memory; the system allocates each page at its first use, or in `fill`.

        Raises `OSError` where the system does not have that much.
        """
        assert block_bytes > 0, f"blocks of {block_bytes} bytes"
        assert block_bytes % PAGE_ALIGNMENT_BYTES == 0, (
            f"blocks of {block_bytes} bytes are not aligned"
        )
        self.block_bytes = block_bytes
        self._block_count = size_bytes // block_bytes
        assert self._block_count > 0, f"{size_bytes} bytes hold no block of {block_bytes}"
        self.size_bytes = self._block_count * block_bytes
        self._memory = mmap.mmap(-1, self.size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # Large pages: handing a read of 1 MiB to the kernel takes a sixth of the time. Some kernels
        # have none.
        with suppress(OSError):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.view = memoryview(self._memory)
        # Free runs, in blocks: length by first block, first block by the block behind, and (length,
        # first) by size.
        self._length_at: dict[int, int] = {0: self._block_count}
        self._first_before: dict[int, int] = {self._block_count: 0}
        self._by_length: list[tuple[int, int]] = [(self._block_count, 0)]
        self._free_blocks = self._block_count
        self._taken: dict[int, int] = {}  # length by first block

    def fill(self, size_bytes: int) -> None:
        """Allocates the pages of the first `size_bytes` now, so that no read does it.

        Raises `OSError` where the system does not have that much. Does nothing before Linux 5.14.
        """
        end = min(-(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE, self.size_bytes)
        for start in range(0, end, FILL_BYTES):
            try:
                self._memory.madvise(_MADV_POPULATE_WRITE, start, min(FILL_BYTES, end - start))
            except OSError as error:
                if error.errno == errno.EINVAL:
                    return
                raise

    @property
    def free_bytes(self) -> int:
        """Bytes in free blocks."""
        return self._free_blocks * self.block_bytes

    def blocks_bytes(self, size_bytes: int) -> int:
        """Returns the size of `size_bytes` in whole blocks, at least one."""
        return max(1, -(-size_bytes // self.block_bytes)) * self.block_bytes

    def allocate(self, size_bytes: int) -> Spans | None:
        """Returns room for `size_bytes`: exactly `blocks_bytes(size_bytes)`; None if there is too
        little.
        """
        wanted = self.blocks_bytes(size_bytes) // self.block_bytes
        if wanted > self._free_blocks:
            return None
        spans = []
        while wanted:
            at = bisect_left(self._by_length, (wanted, -1))  # best fit; the first of equals
            if at == len(self._by_length):
                at = bisect_left(self._by_length, (self._by_length[-1][0], -1))  # the largest
            length, first = self._by_length[at]
            count = min(length, wanted)
            self._unlist(first)
            if count < length:
                self._list(first + count, length - count)
            self._taken[first] = count
            self._free_blocks -= count
            wanted -= count
            spans.append(
                Span(offset_bytes=first * self.block_bytes, size_bytes=count * self.block_bytes)
            )
        return tuple(spans)

    def free(self, spans: Spans) -> None:
        """Frees all spans that one `allocate` returned."""
        for span in spans:
            first, count = (
                span.offset_bytes // self.block_bytes,
                span.size_bytes // self.block_bytes,
            )
            assert self._taken.get(first) == count, f"{span} was not allocated"
            del self._taken[first]
            self._free_blocks += count
            if (before := self._first_before.get(first)) is not None:
                count += self._unlist(before)
                first = before
            if first + count in self._length_at:
                count += self._unlist(first + count)
            self._list(first, count)

    def views(self, spans: Sequence[Span]) -> tuple[memoryview, ...]:
        """Returns the memory of `spans`, writable."""
        return tuple(
            self.view[span.offset_bytes : span.offset_bytes + span.size_bytes] for span in spans
        )

    def close(self) -> None:
        """Releases the memory: the system gets it back with the last view of it.

        Closing twice is harmless.
        """
        self.view = memoryview(b"")
        vars(self).pop("_memory", None)

    def check_integrity(self) -> None:
        """Raises `AssertionError` where runs and counts contradict each other."""
        runs = sorted((first, length) for first, length in self._length_at.items())
        assert self._by_length == sorted((length, first) for first, length in runs)
        assert self._first_before == {first + length: first for first, length in runs}
        assert sum(length for _, length in runs) == self._free_blocks
        end = 0
        was_free = False
        for first, length, is_free in sorted(
            [(*run, True) for run in runs] + [(*run, False) for run in self._taken.items()]
        ):
            assert first == end, f"block {end} is lost or taken twice"
            assert not (is_free and was_free), f"free runs were not joined at block {first}"
            end, was_free = first + length, is_free
        assert end == self._block_count

    def _list(self, first: int, length: int) -> None:
        self._length_at[first] = length
        self._first_before[first + length] = first
        insort(self._by_length, (length, first))

    def _unlist(self, first: int) -> int:
        length = self._length_at.pop(first)
        del self._first_before[first + length]
        del self._by_length[bisect_left(self._by_length, (length, first))]
        return length


def cut_spans(spans: Spans, size_bytes: int, most_bytes: int) -> Spans:
    """Returns the first `size_bytes` of `spans` in pieces of at most `most_bytes` each."""
    pieces = []
    for span in spans:
        at_bytes, end_bytes = 0, min(span.size_bytes, size_bytes)
        size_bytes -= end_bytes
        while at_bytes < end_bytes:
            piece_bytes = min(most_bytes, end_bytes - at_bytes)
            offset_bytes = span.offset_bytes + at_bytes
            pieces.append(Span(offset_bytes=offset_bytes, size_bytes=piece_bytes))
            at_bytes += piece_bytes
    return tuple(pieces)

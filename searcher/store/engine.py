"""The interface of block engines, which have many reads in progress at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from carpool.errors import CarpoolError, CorruptionError, RetryableError

READ_BYTES_MAX = 1 << 20
"""Of one block read: large enough for a disk's full rate, small enough that others do not wait."""
READ_ATTEMPTS = 2
"""How often a read is tried after I/O errors: a short one costs no hits, a failing disk is left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRead:
    """One contiguous piece of a segment. `token` is unique among the reads that have not ended.

    `file`: the segment's number. `buffers` are filled one after the other: writable, 4 KiB-aligned,
    each a multiple of 4 KiB. Only the engine uses them until the read has ended.
    """

    token: int
    file: int
    offset_bytes: int
    buffers: tuple[memoryview, ...]
    is_prefetch: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""
        return sum(buffer.nbytes for buffer in self.buffers)


class CancelledRead(CarpoolError):
    """The read was cancelled before it started. Not a fault."""


BlockError = CorruptionError | RetryableError | CancelledRead
OnDone = Callable[[int, BlockError | None, int], None]
"""Called with token, error or None, and microseconds with the kernel."""


class BlockEngine(Protocol):
    """Reads blocks. Every method may be called from any thread.

    At most `depth` reads are in progress at a time. A prefetch starts only while no demand read
    waits, and at most `prefetch_depth` of them are in progress: a demand read waits for no more.
    """

    def start(self, on_done: OnDone) -> None:
        """Starts the engine; once. `on_done` is called exactly once for each read, in any order, on
        a thread of the engine; it may submit, cancel and promote.

        Without an error the buffers are full. The engine does not verify their content.
        """
        ...

    def submit(self, reads: Sequence[BlockRead]) -> None:
        """Adds reads to the queue. Does not block."""
        ...

    def cancel(self, tokens: Sequence[int]) -> None:
        """Ends reads that have not started with `CancelledRead`; the others continue."""
        ...

    def promote(self, tokens: Sequence[int]) -> None:
        """Makes prefetches demand reads, after those that wait. Ignores reads that have ended."""
        ...

    def with_kernel_since(self, before_us: int) -> tuple[int, ...]:
        """Returns the tokens of unfinished reads that started before `before_us`."""
        ...

    def give_up(self, tokens: Sequence[int]) -> None:
        """Does not count these reads, which hang, among the `depth` any more: others may start.

        That holds for `depth` reads at a time. A read that was given up still ends if the kernel
        ends it.
        """
        ...

    def close(self, timeout_s: float) -> bool:
        """Cancels reads that have not started, and waits up to `timeout_s` for the others.

        Returns whether all reads have ended: before, files and buffers must not be freed. Reads
        that are submitted later are cancelled or ignored.
        """
        ...

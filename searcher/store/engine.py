"""The seam of block engines: many reads in the kernel's hands at once, each told about when it has
ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from carpool.errors import CarpoolError, CorruptionError, RetryableError

READ_BYTES_MAX = 1 << 20
"""Of one block read, unless a setting says otherwise: large enough for a disk's full rate, small
enough to be overtaken.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRead:
    """One contiguous piece of a segment. `token` names it: unique among the reads that have not
    ended.

    `file`: the segment's number. `buffers` are filled one after the other: writable, 4 KiB-aligned,
    each a multiple of 4 KiB; nobody else touches them until the read has ended.
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
    """The read was cancelled before the kernel got it. Not a fault."""


BlockError = CorruptionError | RetryableError | CancelledRead
OnDone = Callable[[int, BlockError | None, int], None]
"""Told (token, what went wrong if anything, microseconds with the kernel)."""


class BlockEngine(Protocol):
    """Reads blocks. Every method may be called from any thread.

    At most `depth` reads are with the kernel at a time. Demands go before prefetches; a prefetch is
    given to the kernel only while no demand waits, and of them at most `prefetch_depth` are there:
    a demand waits behind no more than that.
    """

    def start(self, on_done: OnDone) -> None:
        """Starts the engine; once. `on_done` is called exactly once for each read, in any order,
        from an engine thread.

        It may submit, cancel and promote. Without an error the buffers are full; damage within them
        is not looked for.
        """
        ...

    def submit(self, reads: Sequence[BlockRead]) -> None:
        """Takes in reads. Does not block."""
        ...

    def cancel(self, tokens: Sequence[int]) -> None:
        """Drops what the kernel has not got yet: it ends with `CancelledRead`. The rest ends as if
        nothing had been said.
        """
        ...

    def promote(self, tokens: Sequence[int]) -> None:
        """Makes demands of prefetches, behind the demands that wait. Those that have ended are
        passed over.
        """
        ...

    def with_kernel_since(self, before_us: int) -> tuple[int, ...]:
        """Returns the tokens of the reads that the kernel got before `before_us` and has not
        ended.
        """
        ...

    def give_up(self, tokens: Sequence[int]) -> None:
        """Counts these reads, which the kernel does not return, no longer among the `depth`: others
        may take their place.

        For as many reads as `depth` at a time; further ones keep their place. They still end, if
        ever the kernel ends them.
        """
        ...

    def close(self, timeout_s: float) -> bool:
        """Cancels what waits, and waits for the rest for up to `timeout_s`. What is submitted later
        is cancelled, or ignored.

        Returns whether all reads have ended: until then files and buffers must not be freed.
        """
        ...

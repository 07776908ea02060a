"""The read of one slice: its block reads, and how it can end. Values and pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from carpool.disk.extents import ClusterExtent
from carpool.disk.pages import ClusterPages, PageLayout, UInt8
from carpool.disk.segments import verify_pages
from carpool.errors import CorruptionError, RetryableError
from searcher.events import Purpose
from searcher.memory.arena import Spans
from searcher.plan.slices import SliceId
from searcher.store.engine import READ_BYTES_MAX, BlockError, CancelledRead


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadDone:
    """A slice is in memory, whole and undamaged."""

    slice_id: SliceId
    latency_us: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadBroke:
    """A read failed, was given up, or was cancelled.

    `is_stuck`: the kernel still owns the memory; `SpaceFreed` follows when it returns it.
    """

    slice_id: SliceId
    error: BlockError
    is_stuck: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SpaceFreed:
    """The memory of a stuck read came back: the kernel has ended the last block of it."""

    slice_id: SliceId


MemoryEvent = ReadDone | ReadBroke | SpaceFreed


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRules:
    """How blocks are read.

    A block that fails is read `attempts` times. A read that the kernel has for longer than
    `timeout_us` is given up; that is checked every `watch_us`.
    """

    attempts: int
    timeout_us: int
    block_bytes_max: int = READ_BYTES_MAX
    watch_us: int = 500_000

    def read_bytes(self, page_bytes: int) -> int:
        """Returns the size of a block: whole pages, at most `block_bytes_max`."""
        return self.block_bytes_max // page_bytes * page_bytes


@dataclass(kw_only=True, slots=True)
class Load:
    """The read of a slice; `is_stuck`: given up, and not returned by the kernel yet."""

    number: SliceId
    extent: ClusterExtent
    purpose: Purpose
    spans: Spans
    started_us: int
    tokens: set[int] = field(default_factory=set)
    error: BlockError | None = None
    is_cancelled: bool = False
    is_stuck: bool = False

    @property
    def arena_bytes(self) -> int:
        """Bytes that it takes in the arena."""
        return spans_bytes(self.spans)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A piece of a load, `start_bytes` into the cluster, and which attempt at it this is."""

    load: Load
    start_bytes: int
    buffers: tuple[memoryview, ...]
    attempt: int = 1


def spans_bytes(spans: Spans) -> int:
    """Returns the bytes of `spans`."""
    return sum(span.size_bytes for span in spans)


def split(
    views: Sequence[memoryview], size_bytes: int, read_bytes: int
) -> Iterator[tuple[int, tuple[memoryview, ...]]]:
    """Yields the start and the buffers of each block of `size_bytes`; the last may be smaller.

    `views`: the memory for the slice, in order, at least `size_bytes`.
    """
    left_bytes = size_bytes
    start_bytes, gathered_bytes = 0, 0
    buffers: list[memoryview] = []
    for view in views:
        at_bytes, end_bytes = 0, min(view.nbytes, left_bytes)
        left_bytes -= end_bytes
        while at_bytes < end_bytes:
            buffer = view[at_bytes : min(end_bytes, at_bytes + read_bytes - gathered_bytes)]
            buffers.append(buffer)
            at_bytes += buffer.nbytes
            gathered_bytes += buffer.nbytes
            if gathered_bytes == read_bytes:
                yield start_bytes, tuple(buffers)
                start_bytes += gathered_bytes
                buffers, gathered_bytes = [], 0
    if buffers:
        yield start_bytes, tuple(buffers)


def damage(block: Block, layout: PageLayout, *, build_id: int, path: str) -> CorruptionError | None:
    """Returns what is wrong with the pages of a block; None: they are as they were written."""
    start_bytes = block.start_bytes
    for buffer in block.buffers:
        pages: UInt8 = np.frombuffer(buffer, dtype=np.uint8).reshape(-1, layout.page_bytes)
        first_page = start_bytes // layout.page_bytes
        try:
            verify_pages(
                pages, block.load.extent, build_id=build_id, path=path, first_page=first_page
            )
        except CorruptionError as error:
            # Not the error itself: its traceback would hold the pages.
            return CorruptionError(
                f"{error}. The cluster is skipped, never scored; `carpool index verify` lists all "
                "that is damaged",
                path=error.path,
                offset_bytes=error.offset_bytes,
            )
        start_bytes += buffer.nbytes
    return None


def cluster_pages(
    extent: ClusterExtent, layout: PageLayout, views: Sequence[memoryview]
) -> ClusterPages:
    """Returns the pages of a slice that is stored in `views`, as read-only views of them."""
    pieces = []
    left_bytes = extent.size_bytes
    for view in views:
        used = view[:left_bytes].toreadonly()
        left_bytes -= used.nbytes
        pieces.append(np.frombuffer(used, dtype=np.uint8).reshape(-1, layout.page_bytes))
    return ClusterPages(extent.cluster, layout, extent.row_count, tuple(pieces))


def timed_out(extent: ClusterExtent, path: str, timeout_us: int) -> RetryableError:
    """Returns the error of a read that did not end in time."""
    return RetryableError(
        f"cluster {extent.cluster} at byte {extent.offset_bytes} of {path} did not come within "
        f"{timeout_us / 1_000_000:g} s: the disk hangs, or is too slow. The memory of this read "
        "stays out of use until the kernel returns it. Check the disk; if it is only slow, raise "
        "[searcher] read_timeout_ms"
    )


def of_cluster(error: BlockError, cluster: int) -> BlockError:
    """Returns the error with the cluster's number in it."""
    message = str(error)
    if f"cluster {cluster} " in message or isinstance(error, CancelledRead):
        return error
    message = f"cluster {cluster} could not be read: {message}"
    if isinstance(error, CorruptionError):
        return CorruptionError(message, path=error.path, offset_bytes=error.offset_bytes)
    return RetryableError(message)

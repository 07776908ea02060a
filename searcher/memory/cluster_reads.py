"""The read of one slice: its block reads, and how it can end. Values and pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from carpool.disk.extents import ClusterExtent
from carpool.errors import CorruptionError, RetryableError
from searcher.events import Purpose
from searcher.memory.arena import Spans
from searcher.plan.slices import SliceId
from searcher.store.engine import READ_ATTEMPTS, READ_BYTES_MAX, BlockError, CancelledRead


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadDone:
    """A slice is in memory, whole and undamaged."""

    slice_id: SliceId


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
    """The memory of a stuck read is free: the kernel has ended its last block."""

    slice_id: SliceId


MemoryEvent = ReadDone | ReadBroke | SpaceFreed


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRules:
    """How blocks are read.

    A block that fails is read `attempts` times. A read that the kernel has for longer than
    `timeout_us` is given up; that is checked every `watch_us`.
    """

    attempts: int = READ_ATTEMPTS
    timeout_us: int
    block_bytes_max: int = READ_BYTES_MAX
    watch_us: int = 500_000

    def read_bytes(self, page_bytes: int) -> int:
        """Returns the size of a block: whole pages, at most `block_bytes_max`."""
        return self.block_bytes_max // page_bytes * page_bytes


@dataclass(kw_only=True, slots=True)
class Load:
    """The read of a slice; `is_stuck`: given up, but the kernel has not ended it."""

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
    """A piece of a load, `start_bytes` into the slice; `attempt` counts from 1."""

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


def of_cluster(error: BlockError, cluster: int) -> BlockError:
    """Returns the error with the number of the cluster in its message."""
    message = str(error)
    if f"cluster {cluster} " in message or isinstance(error, CancelledRead):
        return error
    message = f"cluster {cluster} could not be read: {message}"
    if isinstance(error, CorruptionError):
        return CorruptionError(message, path=error.path, offset_bytes=error.offset_bytes)
    return RetryableError(message)

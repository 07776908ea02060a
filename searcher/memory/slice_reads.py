"""The read of one slice: which bytes go where. Values and pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from carpool.disk.extents import ClusterExtent
from carpool.errors import CorruptionError, ReadError, RetryableError
from searcher.plan.slices import SliceId
from searcher.store.arena import Span, Spans
from searcher.store.page_reads import PageBatch

Purpose = Literal["demand", "prefetch"]
"""Why a cluster is read: for a query in progress, or ahead."""


@dataclass(kw_only=True, slots=True, eq=False)
class SliceRead:
    """The read of a slice into `spans`.

    `is_ahead`: no query waits for it. `is_stuck`: given up, but the kernel has not ended it.
    """

    number: SliceId
    extent: ClusterExtent
    purpose: Purpose
    spans: Spans
    started_us: int
    is_ahead: bool
    is_stuck: bool = False

    @property
    def arena_bytes(self) -> int:
        """Bytes that it takes in the arena."""
        return spans_bytes(self.spans)

    @property
    def used(self) -> Spans:
        """The part of the spans that the pages of the slice fill."""
        return cut_spans(self.spans, self.extent.size_bytes, self.extent.size_bytes)


def first_batch(read: SliceRead, memory: memoryview, read_bytes: int) -> PageBatch[Any]:
    """Returns the reads of a slice into the arena `memory`: one for each `read_bytes` of a span."""
    pieces = cut_spans(read.spans, read.extent.size_bytes, read_bytes)
    sizes = np.array([piece.size_bytes for piece in pieces], np.int64)
    return PageBatch(
        owner=None,
        files=np.full(len(pieces), read.extent.segment, np.int64),
        offsets_bytes=read.extent.offset_bytes + np.cumsum(sizes) - sizes,
        sizes_bytes=sizes,
        buffer=memory,
        starts=np.array([piece.offset_bytes for piece in pieces], np.int64),
    )


def spans_bytes(spans: Spans) -> int:
    """Returns the bytes of `spans`."""
    return sum(span.size_bytes for span in spans)


def cut_spans(spans: Spans, size_bytes: int, most_bytes: int) -> Spans:
    """Returns the first `size_bytes` of `spans` in pieces of at most `most_bytes` each."""

    def pieces() -> Iterator[Span]:
        left_bytes = size_bytes
        for span in spans:
            at_bytes, end_bytes = 0, min(span.size_bytes, left_bytes)
            left_bytes -= end_bytes
            while at_bytes < end_bytes:
                piece_bytes = min(most_bytes, end_bytes - at_bytes)
                yield Span(offset_bytes=span.offset_bytes + at_bytes, size_bytes=piece_bytes)
                at_bytes += piece_bytes

    return tuple(pieces())


def of_cluster(error: ReadError, extent: ClusterExtent, path: str) -> ReadError:
    """Returns the error with the cluster and its place in the segment `path` in its message."""
    message = str(error)
    if f"cluster {extent.cluster} " in message:
        return error
    where = f"cluster {extent.cluster} at byte {extent.offset_bytes} of {path}"
    message = f"{where} could not be read: {message}"
    if isinstance(error, CorruptionError):
        return CorruptionError(message, path=error.path, offset_bytes=error.offset_bytes)
    return RetryableError(message)

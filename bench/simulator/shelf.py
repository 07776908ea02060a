"""Clusters on a disk, without anything else of an index: written for a run, or those of an index that is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from bench.data import Float32
from bench.search.dataset import IndexView
from bench.simulator.memory import Shape
from bench.simulator.trace import Clustered, Trace, trace_over
from carpool.clock import SystemClock
from carpool.disk.pages import PageLayout, choose_layout
from carpool.disk.segments import ClusterExtent, SegmentWriter, plan_extents, segment_name
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.cache.arena import Arena, choose_block_bytes
from searcher.cache.cluster_memory import ClusterMemory, ReadRules
from searcher.cache.slices import Slices
from searcher.events import EventLog
from searcher.store.files import SegmentFiles
from searcher.store.opening import open_engine

GENERATION = 1
DEPTH, PREFETCH_DEPTH = 16, 2
CLOSE_S = 10.0


class Shelf(NamedTuple):
    """`centroids`: (nlist, dim) float32; `read_latency_us`: the profile of the index, empty without one."""

    paths: tuple[Path, ...]
    layout: PageLayout
    extents: tuple[ClusterExtent, ...]
    generation: int
    centroids: Float32
    read_latency_us: dict[ClusterId, int]
    direct_io: Literal["require", "auto"] = "require"

    @property
    def size_bytes(self) -> int:
        """Bytes of all clusters on disk."""
        return sum(extent.size_bytes for extent in self.extents)

    def trace(self, questions: Float32, *, nprobe: int, window: int) -> Trace:
        """Returns the trace of `questions`, (n, dim) float32, row-normalised, in this order."""
        sizes = {ClusterId(extent.cluster): extent.size_bytes for extent in self.extents}
        rows = {ClusterId(extent.cluster): extent.row_count for extent in self.extents}
        return trace_over(self.centroids, questions, sizes, rows, nprobe=nprobe, window=window)

    def slices(self, slice_bytes_max: int) -> Slices:
        """Returns these clusters, cut."""
        return Slices(self.extents, self.layout, slice_bytes_max)

    def shape(self, slices: Slices, budget_bytes: int) -> Shape:
        """Returns how memory of at most `budget_bytes` is cut for these slices, as the searcher does it."""
        block_bytes = choose_block_bytes(self.layout.page_bytes, self.size_bytes // len(slices.extents))
        return Shape(
            budget_bytes=budget_bytes // block_bytes * block_bytes,
            block_bytes=block_bytes,
            page_bytes=self.layout.page_bytes,
            depth=DEPTH,
            prefetch_depth=PREFETCH_DEPTH,
        )


def write_shelf(folder: Path, vectors: Float32, clustered: Clustered) -> Shelf:
    """Writes (rows, dim) float32 as clusters into an empty folder. Blocks."""
    nlist, dimension = clustered.centroids.shape
    layout = choose_layout(dimension, "float32")
    extents = plan_extents(layout, np.bincount(clustered.assigned, minlength=nlist).tolist())
    writer = SegmentWriter(folder, layout=layout, generation=GENERATION, extents=extents)
    for number in range(nlist):
        rows = np.flatnonzero(clustered.assigned == number).astype(np.int64)
        writer.append(number, vectors[rows], rows)
    writer.close()
    paths = tuple(folder / segment_name(number) for number in range(1 + extents[-1].segment))
    return Shelf(paths, layout, tuple(extents), GENERATION, clustered.centroids, {})


def shelf_of(view: IndexView) -> Shelf:
    """Returns the clusters of an index."""
    profile = {ClusterId(c): latency_us for c, latency_us in enumerate(view.manifest.read_latency_us)}
    return Shelf(view.segment_paths, view.layout, view.extents, view.manifest.generation, view.centroids, profile)


@contextmanager
def open_memory(
    shelf: Shelf, slices: Slices, shape: Shape, metrics: Metrics, events: EventLog
) -> Iterator[ClusterMemory]:
    """Yields memory for `slices` of `shelf`, read by the engine that this machine gives the searcher."""
    clock = SystemClock()
    files = SegmentFiles(shelf.paths, shelf.direct_io)
    memory = ClusterMemory(
        layout=shelf.layout,
        extents=slices.extents,
        generation=shelf.generation,
        paths=[str(path) for path in shelf.paths],
        arena=Arena(shape.budget_bytes, shape.block_bytes),
        engine=open_engine("auto", files, depth=shape.depth, prefetch_depth=shape.prefetch_depth, clock=clock),
        rules=ReadRules(attempts=1, timeout_us=30_000_000),
        metrics=metrics,
        clock=clock,
        events=events,
    )
    try:
        yield memory
    finally:
        assert memory.close(CLOSE_S), "a read did not come back"
        files.close()

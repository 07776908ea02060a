"""What a disk reaches at the sizes that contestants read: whole clusters, and the slices that ours cuts them into."""

from __future__ import annotations

from bench.disk import Read, measure_disk
from bench.search.cells import DiskBlock
from bench.search.dataset import IndexView
from searcher.cache.slices import Slices
from searcher.settings import SearcherSettings


def slice_reads(view: IndexView, slice_bytes_max: int = SearcherSettings().slice_bytes_max) -> tuple[Read, ...]:
    """Returns where the searcher's slices lie; nothing where it would cut no cluster."""
    slices = Slices(view.extents, view.layout, slice_bytes_max).extents
    if len(slices) == len(view.extents):
        return ()
    return tuple(
        Read(path=view.segment_paths[extent.segment], offset_bytes=extent.offset_bytes, size_bytes=extent.size_bytes)
        for extent in slices
    )


def measure_block(
    view: IndexView, *, settings_id: str, seed: int, window: int, duration_s: float, into_bytes: int
) -> DiskBlock:
    """Returns what the disk reaches now, `duration_s` for each size and depth: into a buffer for each read under way, and into
    `into_bytes` of memory, as much as a contestant's cache. Blocks; raises as `measure_disk` does."""
    slices = slice_reads(view)
    return DiskBlock(
        settings_id=settings_id,
        seed=seed,
        window=window,
        figures=measure_disk(view.reads, seed=seed, duration_s=duration_s),
        slices=measure_disk(slices, seed=seed, duration_s=duration_s) if slices else None,
        spread=measure_disk(slices or view.reads, seed=seed, duration_s=duration_s, into_bytes=into_bytes),
    )

"""What a disk reaches at the sizes that contestants read: whole clusters, and the slices that ours
cuts them into.
"""

from __future__ import annotations

from functools import partial

from bench.micro.disk import Read, measure_disk
from bench.retrieval.cells import DiskBlock
from bench.retrieval.dataset import IndexView
from searcher.memory.slices import Slices
from searcher.settings import SearcherSettings

SUSTAINED = 8
"""How many times as long the best is measured again: 4 s where nobody says otherwise."""


def slice_reads(
    view: IndexView, slice_bytes_max: int = SearcherSettings().slice_bytes_max
) -> tuple[Read, ...]:
    """Returns where the searcher's slices lie; nothing where it would cut no cluster."""
    slices = Slices(view.extents, view.layout, slice_bytes_max).extents
    if len(slices) == len(view.extents):
        return ()
    return tuple(
        Read(
            path=view.segment_paths[extent.segment],
            offset_bytes=extent.offset_bytes,
            size_bytes=extent.size_bytes,
        )
        for extent in slices
    )


def measure_block(
    view: IndexView, *, settings_id: str, seed: int, window: int, duration_s: float, into_bytes: int
) -> DiskBlock:
    """Returns what the disk reaches now, `duration_s` for each size and depth: into a buffer for
    each read under way, and into `into_bytes` of memory, as much as a contestant's cache. The best
    of either is measured again, `SUSTAINED` times as long: the best of many is the luckiest, too.
    Blocks; raises as `measure_disk` does.
    """
    measure = partial(measure_disk, seed=seed)
    slices = slice_reads(view)
    parts = slices or view.reads
    figures = measure(view.reads, duration_s=duration_s)
    of_slices = measure(slices, duration_s=duration_s) if slices else None
    spread = measure(parts, duration_s=duration_s, into_bytes=into_bytes)
    ways = [(rate, view.reads) for rate in figures.rates]
    ways += [(rate, slices) for rate in (of_slices.rates if of_slices is not None else ())]
    best, reads = max(ways, key=lambda way: way[0].bytes_per_s)
    spread_best = max(spread.rates, key=lambda rate: rate.bytes_per_s)
    longer_s = SUSTAINED * duration_s
    again = measure(reads, depths=(best.depth,), duration_s=longer_s)
    spread_again = measure(
        parts, depths=(spread_best.depth,), duration_s=longer_s, into_bytes=into_bytes
    )
    return DiskBlock(
        settings_id=settings_id,
        seed=seed,
        window=window,
        figures=figures,
        slices=of_slices,
        spread=spread,
        sustained=again.rates[0],
        spread_sustained=spread_again.rates[0],
    )

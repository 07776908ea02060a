"""Measures a disk for the simulator: bursts of reads through the searcher's engine, nothing
verified, nothing else going on.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from bench.simulator.disk import DiskCosts
from bench.simulator.rig import Rig
from carpool.clock import SystemClock
from searcher.memory.arena import Arena, Span
from searcher.settings import SearcherSettings
from searcher.store.engine import READ_BYTES_MAX, BlockEngine, BlockError, BlockRead
from searcher.store.factory import open_engine
from searcher.store.files import SegmentFiles

BURSTS = (1, 2, 4, 8, 16, 64)
REPEATS = 9
TOGETHER_BYTES = (1, *(count << 17 for count in range(1, 17)), 4 << 20, 16 << 20)
WAIT_S = 60.0
CLOSE_S = 10.0
DEPTH = SearcherSettings().reads_in_flight_max

Ends = queue.SimpleQueue[tuple[float, BlockError | None]]


class Burst(NamedTuple):
    """Reads of `size_bytes` that were handed over at once; `ended_us`: when each had ended,
    ascending.
    """

    size_bytes: int
    ended_us: tuple[float, ...]


def measure_bursts(rig: Rig, *, seed: int, repeats: int = REPEATS) -> tuple[Burst, ...]:
    """Reads bursts of 1 to 64 blocks, whole random clusters: medians of `repeats` bursts each.
    Blocks for a second at most.
    """
    page_bytes = rig.index.layout.page_bytes
    whole_bytes = READ_BYTES_MAX // page_bytes * page_bytes
    size_bytes = min(
        whole_bytes, int(np.median([extent.size_bytes for extent in rig.index.extents]))
    )
    size_bytes -= size_bytes % page_bytes
    rng = np.random.default_rng(seed)
    ends: Ends = queue.SimpleQueue()
    arena = Arena(
        max(BURSTS) * size_bytes, size_bytes
    )  # memory as that of the searcher, in large pages where there are some
    times: dict[int, list[tuple[float, ...]]] = {count: [] for count in BURSTS}
    token = 0
    with _engine(rig, ends) as engine:
        for _ in range(1 + repeats):  # the first one touches the memory
            for count in BURSTS:
                buffers = arena.views(
                    [
                        Span(offset_bytes=at * size_bytes, size_bytes=size_bytes)
                        for at in range(count)
                    ]
                )
                reads = []
                for buffer, (segment, offset_bytes) in zip(
                    buffers, _places(rig, size_bytes, rng), strict=False
                ):
                    token += 1
                    reads.append(
                        BlockRead(
                            token=token, file=segment, offset_bytes=offset_bytes, buffers=(buffer,)
                        )
                    )
                times[count].append(_burst(engine, reads, ends))
    return tuple(
        Burst(size_bytes, tuple(np.median(found[1:], axis=0).tolist())) for found in times.values()
    )


def _places(rig: Rig, size_bytes: int, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Yields segment and offset of blocks without end: all of a random cluster, one behind the
    other, then of another one.
    """
    large = [extent for extent in rig.index.extents if extent.size_bytes >= size_bytes]
    while True:
        extent = large[int(rng.integers(len(large)))]
        for at in range(extent.size_bytes // size_bytes):
            yield extent.segment, extent.offset_bytes + at * size_bytes


def median_bursts(measured: Sequence[Sequence[Burst]]) -> tuple[Burst, ...]:
    """Returns bursts whose every moment is the median of what was measured at several times, in the
    same order each.
    """
    together = []
    for same in zip(*measured, strict=True):
        assert len({burst.size_bytes for burst in same}) == 1, "bursts of different sizes"
        moments = np.median([burst.ended_us for burst in same], axis=0)
        together.append(Burst(same[0].size_bytes, tuple(moments.tolist())))
    return tuple(together)


def fit_disk(bursts: Sequence[Burst]) -> DiskCosts:
    """Returns the three numbers whose disk comes closest to `bursts`: least squares of relative
    errors.

    Blocks of one size that are served side by side end side by side: the `j`-th of a burst ends
    when all sets up to its own have come through. So given how many make a set, overhead and rate
    are a line through the measured moments.
    """
    fits = []
    for together_bytes in TOGETHER_BYTES:
        through: list[int] = []
        ended_us: list[float] = []
        for burst in bursts:
            count, served = (
                len(burst.ended_us),
                min(DEPTH, max(1, together_bytes // burst.size_bytes)),
            )
            through += [
                burst.size_bytes * min(count, (at // served + 1) * served) for at in range(count)
            ]
            ended_us += burst.ended_us
        line = (
            np.stack([np.ones(len(through)), np.array(through)], axis=1)
            / np.array(ended_us)[:, None]
        )
        (overhead_us, us_per_byte), *_ = np.linalg.lstsq(line, np.ones(len(through)), rcond=None)
        overhead_us = max(1.0, float(overhead_us))
        error = float(np.square(line @ (overhead_us, us_per_byte) - 1).sum())
        costs = DiskCosts(
            overhead_us=overhead_us,
            bytes_per_us=1 / max(float(us_per_byte), 1e-9),
            together_bytes=together_bytes,
        )
        fits.append((error, together_bytes, costs))
    return min(fits, key=lambda fit: fit[:2])[2]


@contextmanager
def _engine(rig: Rig, ends: Ends) -> Iterator[BlockEngine]:
    files = SegmentFiles(rig.index.segment_paths, rig.settings.direct_io)
    engine = open_engine(
        rig.settings.engine, files, depth=DEPTH, prefetch_depth=1, clock=SystemClock()
    )
    engine.start(lambda token, error, latency_us: ends.put((time.perf_counter(), error)))
    try:
        yield engine
    finally:
        assert engine.close(CLOSE_S), "a read did not come back"
        files.close()


def _burst(engine: BlockEngine, reads: Sequence[BlockRead], ends: Ends) -> tuple[float, ...]:
    began_s = time.perf_counter()
    engine.submit(reads)
    moments = []
    for _ in reads:
        ended_s, error = ends.get(timeout=WAIT_S)
        if error is not None:
            raise error
        moments.append((ended_s - began_s) * 1e6)
    return tuple(sorted(moments))

"""How long does it take to read each cluster from this disk? Measured past the page cache, at the end of a build."""

from __future__ import annotations

import mmap
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

from carpool.clock import Clock
from carpool.disk.segment import ClusterExtent


def profile_reads(path: Path, extents: Sequence[ClusterExtent], *, reads: int, clock: Clock) -> tuple[int, ...]:
    """Returns the median time of `reads` reads of each cluster, in microseconds, indexed by cluster; at least 1. Blocks.

    Returns nothing where the file system has no O_DIRECT (then a read would measure memory), or for 0 reads.
    """
    if not reads or not extents:
        return ()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return ()
    buffer = mmap.mmap(-1, max(extent.size_bytes for extent in extents))
    view = memoryview(buffer)
    try:
        latencies = []
        for extent in extents:
            times_us = []
            for _ in range(reads):
                before_us = clock.now_us()
                os.preadv(descriptor, [view[: extent.size_bytes]], extent.offset_bytes)
                times_us.append(clock.now_us() - before_us)
            latencies.append(max(1, round(statistics.median(times_us))))
        return tuple(latencies)
    except OSError:
        return ()
    finally:
        view.release()
        buffer.close()
        os.close(descriptor)

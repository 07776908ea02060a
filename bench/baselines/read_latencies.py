"""How long each cluster of an index takes to read from its disk, past the page cache.

Contestants load what was measured before the run: `PREPARATION` measures it once for each index.
"""

from __future__ import annotations

import mmap
import os
import random
import statistics
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench.baselines.contestant import Preparation, SearchData
from carpool.clock import Clock, SystemClock
from carpool.disk.direct import NoDirectReadError, open_direct
from carpool.disk.extents import ClusterExtent
from carpool.disk.index import OpenIndex, open_index
from carpool.errors import ConfigError, CorruptionError
from searcher.plan.slices import SliceId

FILE_NAME = "microseconds.json"
ROUNDS = 3
PIECE_BYTES = 8 << 20
"""The largest read: several of these are as fast as one larger read, and take less memory."""


def read_latencies_us(index: OpenIndex, clock: Clock) -> dict[SliceId, int]:
    """Returns the median read time of each cluster, in microseconds, at least 1. Blocks.

    Each round reads all clusters once, in another seeded order: a cluster that was read just before
    would come from the disk's cache. Raises `ConfigError` where the file system has no O_DIRECT or
    no disk, `CorruptionError` for a segment that was cut short.
    """
    with ExitStack() as stack:
        descriptors = [_open(path, stack) for path in index.segment_paths]
        buffer = stack.enter_context(mmap.mmap(-1, PIECE_BYTES))
        view = stack.enter_context(memoryview(buffer))
        times_us: list[list[int]] = [[] for _ in index.extents]
        for turn in range(ROUNDS):
            count = len(index.extents)
            for cluster in random.Random(turn).sample(range(count), count):
                extent = index.extents[cluster]
                before_us = clock.now_us()
                path = index.segment_paths[extent.segment]
                _read(descriptors[extent.segment], extent, view, path)
                times_us[cluster].append(clock.now_us() - before_us)
    return {
        SliceId(cluster): max(1, round(statistics.median(times)))
        for cluster, times in enumerate(times_us)
    }


def load_read_latencies(data: SearchData) -> dict[SliceId, int]:
    """Returns what `PREPARATION` measured."""
    content = (data.prepared_dir / PREPARATION.name / FILE_NAME).read_bytes()
    latencies_us = msgspec.json.decode(content, type=list[int])
    return {SliceId(cluster): each_us for cluster, each_us in enumerate(latencies_us)}


def _make_file(data: SearchData, folder: Path) -> None:
    index = open_index(data.index_dir)
    index.close()
    latencies_us = read_latencies_us(index, SystemClock())
    (folder / FILE_NAME).write_bytes(msgspec.json.encode(list(latencies_us.values())))


PREPARATION = Preparation(name="read-latencies", make=_make_file)


def _open(path: Path, stack: ExitStack) -> int:
    try:
        descriptor = open_direct(path)
    except NoDirectReadError as error:
        raise ConfigError(
            f"EdgeRAG's cache evicts by read latencies, and the file system of {path} {error}, so "
            "that a read would measure memory: copy the index to a local disk (ext4, xfs)"
        ) from error
    stack.callback(os.close, descriptor)
    return descriptor


def _read(descriptor: int, extent: ClusterExtent, view: memoryview, path: Path) -> None:
    done = 0
    while done < extent.size_bytes:
        wanted = min(len(view), extent.size_bytes - done)
        count = os.preadv(descriptor, [view[:wanted]], extent.offset_bytes + done)
        if count != wanted:
            raise CorruptionError(
                f"{path} ends in cluster {extent.cluster}; restore the index or rebuild it",
                path=str(path),
                offset_bytes=extent.offset_bytes + done + count,
            )
        done += count

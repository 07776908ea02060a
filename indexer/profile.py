"""Measures how long each cluster takes to read from this disk, past the page cache."""

from __future__ import annotations

import mmap
import os
import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from carpool.clock import Clock
from carpool.disk.direct import NoDirectReadError, open_direct
from carpool.disk.extent_table import read_extents
from carpool.disk.extents import ClusterExtent, segment_name
from carpool.disk.index import check_sizes
from carpool.disk.manifest import Manifest, read_manifest, write_manifest
from carpool.errors import ConfigError, CorruptionError
from indexer.progress import ProgressReport

PIECE_BYTES = 8 << 20
"""The largest read: several of these are as fast as one larger read, and take less memory."""


def profile_index(
    index_dir: Path, *, reads: int, clock: Clock, progress: ProgressReport
) -> Manifest:
    """Measures an index and replaces the profile in its manifest, atomically. Blocks.

    Raises `ConfigError` where there is no index, no O_DIRECT or no disk, or the index was replaced
    meanwhile; `CorruptionError` where it is damaged. A process that has the index open keeps the
    profile that it read.
    """
    if reads < 1:
        raise ConfigError(
            "indexer.profile_reads is 0: a profile needs at least one read of each cluster; give "
            "--reads 3"
        )
    manifest = read_manifest(index_dir)
    check_sizes(index_dir, manifest)
    extents = read_extents(index_dir, manifest)
    progress.start("reading clusters", reads * len(extents))
    try:
        latencies_us = measure_reads(
            index_dir, extents, reads=reads, clock=clock, on_read=progress.advance
        )
    except NoDirectReadError as error:
        raise ConfigError(
            f"the file system of {index_dir} {error}, so that a read would measure memory; the "
            "profile stays as it was. Copy the index to a local disk (ext4, xfs), and profile it "
            "there"
        ) from error
    profiled = msgspec.structs.replace(manifest, read_latency_us=latencies_us)
    if read_manifest(index_dir) != manifest:
        raise ConfigError(
            f"the index at {index_dir} was replaced while it was read; run the same command again"
        )
    write_manifest(index_dir, profiled)
    return profiled


def measure_reads(
    folder: Path,
    extents: Sequence[ClusterExtent],
    *,
    reads: int,
    clock: Clock,
    on_read: Callable[[int], None],
) -> tuple[int, ...]:
    """Returns the median read time of each cluster, in microseconds, at least 1. Blocks.

    Each round reads all clusters once, in another seeded order: a cluster that was read just before
    would come from the disk's cache. Raises `NoDirectReadError` where the file system has no
    O_DIRECT or no disk, `CorruptionError` for a segment that was cut short.
    """
    segments = sorted({extent.segment for extent in extents})
    with ExitStack() as stack:
        descriptors = {}
        for segment in segments:
            descriptors[segment] = open_direct(folder / segment_name(segment))
            stack.callback(os.close, descriptors[segment])
        buffer = stack.enter_context(mmap.mmap(-1, PIECE_BYTES))
        view = stack.enter_context(memoryview(buffer))
        times_us: list[list[int]] = [[] for _ in extents]
        for turn in range(reads):
            for number in random.Random(turn).sample(range(len(extents)), len(extents)):
                extent = extents[number]
                before_us = clock.now_us()
                _read(descriptors[extent.segment], extent, view, folder)
                times_us[number].append(clock.now_us() - before_us)
                on_read(1)
    return tuple(max(1, round(statistics.median(times))) for times in times_us)


def _read(descriptor: int, extent: ClusterExtent, view: memoryview, folder: Path) -> None:
    done = 0
    while done < extent.size_bytes:
        wanted = min(len(view), extent.size_bytes - done)
        count = os.preadv(descriptor, [view[:wanted]], extent.offset_bytes + done)
        if count != wanted:
            path = str(folder / segment_name(extent.segment))
            raise CorruptionError(
                f"{path} ends in cluster {extent.cluster}; restore the index or rebuild it",
                path=path,
                offset_bytes=extent.offset_bytes + done + count,
            )
        done += count

"""Clusters in memory: bytes as the kernel counts them, and memory that is as it was."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from carpool.errors import CorruptionError, RetryableError
from schemas.record import ClusterId
from searcher.memory.slice_reads import ReadDone
from tests.rig.faulty_disk import Fault, PageRead
from tests.searcher.stored_clusters import (
    ALL,
    DIMENSION,
    Stored,
    check_rows,
    error_of,
    running,
    store,
)
from tests.seed import SEED


def kernel_read_bytes() -> int:
    """Returns what this process, with all its threads, had fetched from storage so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("read_bytes")))


def resident_set_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_rounds_of_faults_break_only_what_they_hit_and_leave_memory_as_it_was(
    stored: Stored,
) -> None:
    """Failing, damaged, slow and hanging reads, through real files; each cluster breaks exactly if
    one of its reads did.
    """
    generator = random.Random(SEED)
    bad: dict[tuple[int, int], Fault] = {}
    faults: tuple[Fault, ...] = (RetryableError("no"), "flip", 0.002, "hang")

    def fault(read: PageRead) -> Fault:
        return bad.get(read[:2])

    with running(stored, timeout_us=1_000_000, fault=fault) as it:
        sizes = []
        for number in range(20):
            bad.clear()
            count = len(faults) - (number % 10 > 0)  # what hangs takes until the time-out
            hit = {
                cluster: generator.choice(faults[:count])
                for cluster in ALL
                if generator.random() < 0.15
            }
            for cluster, what in hit.items():
                extent = stored.extents[cluster]
                page = generator.randrange(extent.page_count) // 5 * 5
                bad[(extent.segment, extent.offset_bytes + page * stored.layout.page_bytes)] = what
            events = it.read(*generator.sample(ALL, len(ALL)))
            for cluster, event in events.items():
                what = hit.get(cluster)
                if what is None or isinstance(what, float):
                    assert isinstance(event, ReadDone), (cluster, what, event)
                    check_rows(it.memory, stored, cluster)
                    it.memory.evict(cluster)
                else:
                    kind_of_error = CorruptionError if what == "flip" else RetryableError
                    error_of(event, kind_of_error, is_stuck=what == "hang")
            stuck = [cluster for cluster, what in hit.items() if what == "hang"]
            assert it.memory.stuck_bytes == sum(it.memory.arena_bytes(cluster) for cluster in stuck)
            it.disk.release()
            assert {event.slice_id for event in it.take(len(stuck))} == set(stuck)
            assert it.arena.free_bytes == it.arena.size_bytes
            it.memory.check_integrity()
            sizes.append(resident_set_bytes())
        assert it.memory.advance() == []
        assert sizes[-1] - sizes[10] < 2 << 20, "the process has grown"


def test_the_bytes_it_counts_are_those_that_the_kernel_counts(tmp_path: Path) -> None:
    """/proc/self/io, `read_bytes`: what this process, with all its threads, had fetched from
    storage.
    """
    large = store(tmp_path, (30_000, 20_000, 100, 45_000), DIMENSION, segment_bytes_max=6 << 20)
    for path in large.paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    with running(large, arena_bytes=16 << 20, block_pages=16, read_pages=256) as it:
        before = kernel_read_bytes()
        events = it.read(*(ClusterId(cluster) for cluster in range(4)))
        assert all(isinstance(event, ReadDone) for event in events.values())
        counted = it.sample("bytes_read_total", purpose="demand")
        assert counted == sum(extent.size_bytes for extent in large.extents)
        assert counted == pytest.approx(kernel_read_bytes() - before, rel=0.02)

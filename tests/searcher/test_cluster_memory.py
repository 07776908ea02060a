"""Clusters in memory: what arrives, what breaks and why, and what hangs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carpool.errors import CorruptionError, RetryableError
from schemas.record import ClusterId
from searcher.plan.cluster_steps import ReadEnded, ReadFailed, RoomFreed
from tests.rig.faulty_disk import Fault, PageRead
from tests.searcher.faults import no_fault
from tests.searcher.stored_clusters import ALL, A, B, C, D, Stored, check_rows, error_of, running


def first_read(stored: Stored, cluster: ClusterId) -> tuple[int, int]:
    return stored.extents[cluster].segment, stored.extents[cluster].offset_bytes


def flip(path: Path, at_bytes: int) -> None:
    with path.open("r+b") as file:
        file.seek(at_bytes)
        byte = file.read(1)[0]
        file.seek(at_bytes)
        file.write(bytes([byte ^ 4]))


def test_every_cluster_arrives_whole_whatever_blocks_and_reads_are_cut_to(stored: Stored) -> None:
    for block_pages, read_pages in ((1, 100), (3, 2), (16, 1)):
        with running(stored, block_pages=block_pages, read_pages=read_pages) as it:
            events = it.read(*ALL)
            assert all(isinstance(event, ReadEnded) for event in events.values())
            assert it.memory.residents() == set(ALL)
            for cluster in ALL:
                check_rows(it.memory, stored, cluster)
            largest_bytes = max(read.size_bytes for read in it.disk.seen)
            assert largest_bytes <= read_pages * stored.layout.page_bytes
            total_bytes = sum(extent.size_bytes for extent in stored.extents)
            assert it.seen_bytes() == total_bytes
            assert it.sample("bytes_read_total", purpose="demand") == total_bytes


def test_a_scattered_cluster_is_read_into_its_pieces_and_each_of_its_pages_is_checked(
    stored: Stored, tmp_path: Path
) -> None:
    """Every second small cluster is evicted, and a large one takes the holes."""
    small = (ClusterId(2), ClusterId(4), ClusterId(7), B)
    # Exactly what holds the large one once the second and the last of the small ones are gone.
    arena_bytes = sum(stored.extents[cluster].size_bytes for cluster in (small[0], small[2], D))
    extent, paths = stored.extents[D], stored.copied(tmp_path)
    with running(stored, paths=paths, block_pages=1, arena_bytes=arena_bytes) as it:
        for cluster in small:
            assert isinstance(it.read(cluster)[cluster], ReadEnded)
        it.memory.evict(small[1])
        it.memory.evict(small[3])
        assert isinstance(it.read(D)[D], ReadEnded)
        assert it.arena.free_bytes == 0
        assert len(it.memory.pages(D).pieces) == 2
        for cluster in (D, small[0], small[2]):
            check_rows(it.memory, stored, cluster)
        it.memory.evict(D)
        for page in range(extent.page_count):
            at_bytes = extent.offset_bytes + page * stored.layout.page_bytes
            flip(paths[extent.segment], at_bytes + 17)
            assert error_of(it.read(D)[D], CorruptionError).offset_bytes == at_bytes
            flip(paths[extent.segment], at_bytes + 17)


# ---- which read begins


def test_reads_that_queries_wait_for_go_first_and_the_kernel_has_no_more_than_it_may(
    stored: Stored,
) -> None:
    with running(stored, in_flight_bytes=1, fault=lambda _: "hang") as it:  # one at a time
        order = []
        for cluster, is_prefetch in ((A, False), (B, True), (C, True), (D, False)):
            it.memory.begin_read(cluster, is_prefetch=is_prefetch)
        it.memory.requeue(C, is_ahead=False)
        it.memory.requeue(ClusterId(2), is_ahead=False)  # is not being read: passed over
        begun = 0
        for _ in range(4):
            it.memory.advance()
            order.append(it.disk.seen[begun][:2])
            begun = len(it.disk.seen)
            while not it.disk.hanging:
                assert it.memory.advance() == []
            assert len(it.disk.seen) == begun, "no other has begun"
            it.disk.release()
            assert isinstance(it.take(1)[0], ReadEnded)
        assert order == [first_read(stored, cluster) for cluster in (A, D, C, B)]


def test_a_read_that_nobody_wants_any_more_delays_none_that_is_wanted(stored: Stored) -> None:
    with running(stored, in_flight_bytes=1) as it:  # one at a time
        for cluster in (A, B, C):
            it.memory.begin_read(cluster, is_prefetch=False)
        it.memory.requeue(B, is_ahead=True)
        it.memory.begin_read(D, is_prefetch=False)
        it.take(4)
        begun = [read[:2] for read in it.disk.seen]
        order = sorted((A, B, C, D), key=lambda one: begun.index(first_read(stored, one)))
        assert order == [A, C, D, B]


# ---- what hangs


def test_a_read_that_hangs_breaks_after_the_timeout_and_frees_its_room_when_it_comes_back(
    stored: Stored,
) -> None:
    def hang(read: PageRead) -> Fault:
        return "hang" if read[:2] == first_read(stored, B) else None

    with running(stored, timeout_us=1_000_000, fault=hang) as it:
        events = it.read(A, B)
        assert isinstance(events[A], ReadEnded)
        error = error_of(events[B], RetryableError, is_stuck=True)
        assert "read_timeout_ms" in str(error)
        stuck_bytes = it.sample("resident_bytes", kind="stuck")
        assert it.memory.reader.stuck_bytes == it.memory.arena_bytes(B) == stuck_bytes
        it.memory.check_integrity()
        it.disk.fault = no_fault
        assert isinstance(it.read(B)[B], ReadEnded)  # also while the other read of it hangs
        check_rows(it.memory, stored, B)
        it.disk.release()
        assert it.take(1) == [RoomFreed(slice_id=B)]
        assert it.memory.reader.stuck_bytes == 0
        used_bytes = it.memory.arena_bytes(A) + it.memory.arena_bytes(B)
        assert it.arena.free_bytes == it.arena.size_bytes - used_bytes


def test_reads_that_wait_behind_a_disk_that_hangs_altogether_break_too(stored: Stored) -> None:
    with running(stored, timeout_us=200_000, in_flight_bytes=1, fault=lambda _: "hang") as it:
        broken = it.read(A, B, C, D)
        assert all(isinstance(event, ReadFailed) for event in broken.values())
        stuck = [key for key, event in broken.items() if getattr(event, "is_stuck", False)]
        assert stuck == [A]
        assert it.memory.used_bytes == it.memory.reader.stuck_bytes == it.memory.arena_bytes(A)
        it.disk.release()
        assert it.take(1) == [RoomFreed(slice_id=A)]
        assert it.arena.free_bytes == it.arena.size_bytes


def test_clusters_that_hang_do_not_delay_others(stored: Stored) -> None:
    """Those that hang are all that the kernel may have."""
    hanging = {first_read(stored, cluster) for cluster in (A, B)}
    both_bytes = sum(stored.extents[cluster].size_bytes for cluster in (A, B))
    with running(
        stored,
        timeout_us=1_000_000,
        in_flight_bytes=both_bytes,
        fault=lambda read: "hang" if read[:2] in hanging else None,
    ) as it:
        broken = it.read(A, B)
        assert all(isinstance(event, ReadFailed) and event.is_stuck for event in broken.values())
        for cluster in (C, D):
            assert isinstance(it.read(cluster)[cluster], ReadEnded)
            check_rows(it.memory, stored, cluster)
        it.disk.release()
        assert {event.slice_id for event in it.take(2)} == {A, B}


# ---- books


def kernel_read_bytes() -> int:
    """Returns what this process, with all its threads, had fetched from storage so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("read_bytes")))


def test_the_bytes_it_counts_are_those_that_the_kernel_counts(tmp_path: Path) -> None:
    """/proc/self/io, `read_bytes`: what this process, with all its threads, had fetched from
    storage.
    """
    large = Stored(tmp_path, (3_000, 2_000, 100, 4_500), 240, segment_bytes_max=6 << 20)
    for path in large.paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    with running(large, arena_bytes=16 << 20, block_pages=16, read_pages=256) as it:
        before = kernel_read_bytes()
        events = it.read(*(ClusterId(cluster) for cluster in range(4)))
        assert all(isinstance(event, ReadEnded) for event in events.values())
        counted = it.sample("bytes_read_total", purpose="demand")
        assert counted == sum(extent.size_bytes for extent in large.extents)
        assert counted == pytest.approx(kernel_read_bytes() - before, rel=0.02)

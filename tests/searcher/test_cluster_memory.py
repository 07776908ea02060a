"""Clusters in memory: what arrives, and what breaks and why."""

from __future__ import annotations

import itertools
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from carpool.clock import SystemClock
from carpool.disk.extents import ClusterExtent, segment_name
from carpool.errors import CorruptionError, RetryableError
from schemas.record import ClusterId
from searcher.memory.cluster_memory import ReadDone
from searcher.store.engine import BlockRead
from searcher.store.faulty import Fault
from searcher.store.files import SegmentFiles
from searcher.store.none import NoEngine
from searcher.store.threads import ThreadEngine
from tests.searcher.memory_engine import MemoryEngine
from tests.searcher.stored_clusters import (
    ALL,
    A,
    B,
    C,
    D,
    Stored,
    check_rows,
    error_of,
    in_memory,
    running,
)


def test_every_cluster_arrives_whole_whatever_blocks_and_reads_are_cut_to(stored: Stored) -> None:
    for block_pages, read_pages in itertools.product((1, 3, 16), (1, 2, 7, 100)):
        with running(
            stored, in_memory(stored), block_pages=block_pages, read_pages=read_pages
        ) as it:
            events = it.read(*ALL)
            assert all(isinstance(event, ReadDone) for event in events.values())
            assert it.memory.residents() == set(ALL)
            for cluster in ALL:
                check_rows(it.memory, stored, cluster)
            assert (
                max(read.size_bytes for read in it.engine.seen)
                <= read_pages * stored.layout.page_bytes
            )
            total_bytes = sum(extent.size_bytes for extent in stored.extents)
            assert sum(read.size_bytes for read in it.engine.seen) == total_bytes
            assert it.sample("bytes_read_total", purpose="demand") == total_bytes


def test_a_scattered_cluster_is_read_into_its_pieces_and_each_of_its_pages_is_checked(
    stored: Stored,
) -> None:
    """Every second small cluster is evicted, and a large one takes the holes."""
    small = (ClusterId(2), ClusterId(4), ClusterId(7), B)
    # Exactly what holds the large one once the second and the last of the small ones are gone.
    arena_bytes = sum(stored.extents[cluster].size_bytes for cluster in (small[0], small[2], D))
    contents = [bytearray(content) for content in stored.contents()]
    extent = stored.extents[D]
    engine = MemoryEngine(contents, clock=SystemClock())  # type: ignore[arg-type]
    with running(stored, engine, block_pages=1, arena_bytes=arena_bytes) as it:
        for cluster in small:
            assert isinstance(it.read(cluster)[cluster], ReadDone)
        it.memory.evict(small[1])
        it.memory.evict(small[3])
        before = len(it.engine.seen)
        assert isinstance(it.read(D)[D], ReadDone)
        assert it.arena.free_bytes == 0
        assert len(it.memory.pages(D).pieces) == 2
        assert any(len(read.buffers) > 1 for read in it.engine.seen[before:])
        for cluster in (D, small[0], small[2]):
            check_rows(it.memory, stored, cluster)
        it.memory.evict(D)
        for page in range(extent.page_count):
            at_bytes = extent.offset_bytes + page * stored.layout.page_bytes
            contents[extent.segment][at_bytes + 17] ^= 4
            assert error_of(it.read(D)[D], CorruptionError).offset_bytes == at_bytes
            contents[extent.segment][at_bytes + 17] ^= 4


def test_what_is_evicted_gives_its_blocks_back(stored: Stored) -> None:
    with running(stored, in_memory(stored)) as it:
        free_bytes = it.arena.free_bytes
        it.read(A, B)
        used_bytes = it.memory.arena_bytes(A) + it.memory.arena_bytes(B)
        assert it.arena.free_bytes == free_bytes - used_bytes
        assert it.sample("resident_bytes", kind="resident") == used_bytes
        it.memory.evict(A)
        it.memory.evict(B)
        assert it.arena.free_bytes == free_bytes
        assert it.sample("resident_bytes", kind="resident") == 0


def test_without_room_a_read_is_a_fault_of_the_planner(stored: Stored) -> None:
    with running(stored, in_memory(stored), arena_bytes=100_000) as it:
        it.read(A)
        with pytest.raises(AssertionError, match="no room"):
            it.memory.begin_read(D, is_prefetch=False)


def test_damage_breaks_that_cluster_only_names_the_place_and_is_not_read_again(
    stored: Stored,
) -> None:
    contents = [bytearray(content) for content in stored.contents()]
    extent = stored.extents[B]
    page = 2
    contents[extent.segment][extent.offset_bytes + page * stored.layout.page_bytes + 17] ^= 4
    with running(stored, MemoryEngine([bytes(c) for c in contents], clock=SystemClock())) as it:
        events = it.read(A, B, C)
        error = error_of(events[B], CorruptionError)
        assert error.path == segment_name(extent.segment)
        assert error.offset_bytes == extent.offset_bytes + page * stored.layout.page_bytes
        assert isinstance(events[A], ReadDone)
        assert isinstance(events[C], ReadDone)
        assert it.memory.residents() == {A, C}
        assert it.sample("clusters_damaged_total") == 1
        assert len({read.offset_bytes for read in it.engine.seen}) == len(it.engine.seen)


def test_a_cluster_of_another_place_never_passes_for_this_one(stored: Stored) -> None:
    swapped = list(stored.extents)
    one, two = stored.extents[C], stored.extents[C + 1]
    swapped[C] = msgspec.structs.replace(one, segment=two.segment, offset_bytes=two.offset_bytes)
    with running(replace(stored, extents=tuple(swapped)), in_memory(stored)) as it:
        error_of(it.read(C)[C], CorruptionError)


def test_a_segment_that_ends_early_is_damage_that_names_the_cluster(
    stored: Stored, tmp_path: Path
) -> None:
    paths = [Path(shutil.copy(path, tmp_path)) for path in stored.paths]
    extent = stored.extents[D]
    end_bytes = extent.offset_bytes + extent.size_bytes - 4096
    os.truncate(paths[extent.segment], end_bytes)
    files = SegmentFiles(paths, "require")
    with running(
        stored, ThreadEngine(files.read_block, depth=3, prefetch_depth=1, clock=SystemClock())
    ) as it:
        events = it.read(A, D)
        assert error_of(events[D], CorruptionError).offset_bytes == end_bytes
        assert isinstance(events[A], ReadDone)
    files.close()


def test_a_block_that_fails_and_then_goes_through_is_not_noticed(stored: Stored) -> None:
    failed: set[int] = set()

    def fail_once(read: BlockRead) -> Fault:
        if read.offset_bytes in failed:
            return None
        failed.add(read.offset_bytes)
        return RetryableError("passing")

    with running(stored, in_memory(stored), attempts=2, fault=fail_once) as it:
        events = it.read(A, B)
        assert all(isinstance(event, ReadDone) for event in events.values())
        check_rows(it.memory, stored, A)


def test_a_block_that_goes_on_failing_breaks_its_cluster_after_so_many_attempts(
    stored: Stored,
) -> None:
    offset_bytes = stored.extents[B].offset_bytes

    def fail(read: BlockRead) -> Fault:
        is_bad = read.offset_bytes == offset_bytes and read.file == stored.extents[B].segment
        return RetryableError("the cable is out") if is_bad else None

    with running(stored, in_memory(stored), attempts=3, fault=fail) as it:
        free_bytes = it.arena.free_bytes
        events = it.read(A, B)
        assert "the cable is out" in str(error_of(events[B], RetryableError))
        place = (stored.extents[B].segment, offset_bytes)
        assert [(read.file, read.offset_bytes) for read in it.engine.seen].count(place) == 3
        assert isinstance(events[A], ReadDone)
        assert it.arena.free_bytes == free_bytes - it.memory.arena_bytes(A)
        assert isinstance(it.read(C)[C], ReadDone)  # and the next one goes on


def test_a_check_that_cannot_be_made_breaks_its_cluster_and_leaves_nobody_waiting(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(pages: object, extent: ClusterExtent, **given: Any) -> None:
        if extent.cluster == A:
            raise MemoryError("not now")

    monkeypatch.setattr("searcher.memory.verify.verify_pages", check)
    with running(stored, in_memory(stored)) as it:
        events = it.read(A, B)
        assert isinstance(events[B], ReadDone)
        assert "not now" in str(error_of(events[A], RetryableError))
        it.memory.evict(B)
        assert it.arena.free_bytes == it.arena.size_bytes


def test_an_engine_without_anything_breaks_every_cluster_and_keeps_no_byte(stored: Stored) -> None:
    with running(stored, NoEngine(clock=SystemClock())) as it:
        events = it.read(A, B, C)
        for event in events.values():
            error_of(event, RetryableError)
        assert it.arena.free_bytes == it.arena.size_bytes

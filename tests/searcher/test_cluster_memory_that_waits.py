"""Clusters in memory: cancelled and hanging reads, and closing."""

from __future__ import annotations

import threading

from carpool.clock import SystemClock
from carpool.errors import RetryableError
from searcher.memory.arena import Span
from searcher.memory.cluster_memory import (
    MemoryEvent,
    ReadBroke,
    ReadDone,
    SpaceFreed,
)
from searcher.store.engine import BlockRead, CancelledRead
from searcher.store.faulty import Fault
from searcher.store.files import SegmentFiles
from searcher.store.threads import ThreadEngine
from tests.searcher.stored_clusters import (
    A,
    B,
    C,
    D,
    Heard,
    Stored,
    check_rows,
    error_of,
    in_memory,
    running,
)


def test_a_cancelled_read_gives_its_room_back_and_may_be_asked_for_again(stored: Stored) -> None:
    go_on = threading.Event()

    def wait(_: BlockRead) -> Fault:
        assert go_on.wait(30)
        return None

    with running(stored, in_memory(stored), fault=wait) as it:
        it.memory.begin_read(A, is_prefetch=False)
        it.memory.begin_read(D, is_prefetch=True)
        it.memory.cancel(D)
        it.memory.cancel(B)  # is not being read: passed over
        go_on.set()
        events = {event.slice_id: event for event in it.heard.take(2)}
        assert isinstance(events[A], ReadDone)
        broken = events[D]
        assert isinstance(broken, ReadBroke)
        assert isinstance(broken.error, CancelledRead)
        assert it.arena.free_bytes == it.arena.size_bytes - it.memory.arena_bytes(A)
        assert isinstance(it.read(D)[D], ReadDone)


def test_a_read_that_hangs_breaks_after_the_timeout_and_frees_its_room_when_it_comes_back(
    stored: Stored,
) -> None:
    place = (stored.extents[B].segment, stored.extents[B].offset_bytes)
    hangs = [True]

    def hang(read: BlockRead) -> Fault:
        return "hang" if hangs[0] and (read.file, read.offset_bytes) == place else None

    with running(stored, in_memory(stored), fault=hang) as it:
        events = it.read(A, B)
        assert isinstance(events[A], ReadDone)
        error = error_of(events[B], RetryableError, is_stuck=True)
        assert "read_timeout_ms" in str(error)
        assert (
            it.memory.stuck_bytes
            == it.memory.arena_bytes(B)
            == it.sample("resident_bytes", kind="stuck")
        )
        it.memory.check_integrity()
        hangs[0] = False
        assert isinstance(it.read(B)[B], ReadDone)  # also while the other read of it hangs
        check_rows(it.memory, stored, B)
        it.engine.release()
        assert it.heard.take(1) == [SpaceFreed(slice_id=B)]
        assert it.memory.stuck_bytes == 0
        used_bytes = it.memory.arena_bytes(A) + it.memory.arena_bytes(B)
        assert it.arena.free_bytes == it.arena.size_bytes - used_bytes


def test_reads_that_wait_behind_a_disk_that_hangs_altogether_break_too(stored: Stored) -> None:
    release = threading.Event()

    def stand_still(_: BlockRead) -> None:
        assert release.wait(30)
        raise RetryableError("too late")

    inner = ThreadEngine(stand_still, depth=2, prefetch_depth=1, clock=SystemClock())
    with running(stored, inner, timeout_us=40_000) as it:
        events = it.read(A, B, C, D)
        assert all(isinstance(event, ReadBroke) and event.is_stuck for event in events.values())
        release.set()
        assert {event.slice_id for event in it.heard.take(4)} == {A, B, C, D}
        assert it.arena.free_bytes == it.arena.size_bytes


def test_clusters_that_hang_do_not_delay_others(stored: Stored) -> None:
    """As many hang as the engine reads at a time; the next ones are read as soon as those are given
    up.
    """
    release = threading.Event()
    hanging = {
        (stored.extents[cluster].segment, stored.extents[cluster].offset_bytes)
        for cluster in (A, B)
    }
    files = SegmentFiles(stored.paths, "auto")

    def read_block(read: BlockRead) -> None:
        if (read.file, read.offset_bytes) in hanging:
            assert release.wait(30)
        files.read_block(read)

    inner = ThreadEngine(read_block, depth=2, prefetch_depth=1, clock=SystemClock())
    with running(stored, inner, timeout_us=300_000) as it:
        broken = it.read(A, B)
        assert all(isinstance(event, ReadBroke) and event.is_stuck for event in broken.values())
        for cluster in (C, D):
            assert isinstance(it.read(cluster)[cluster], ReadDone)
            check_rows(it.memory, stored, cluster)
        release.set()
        assert {event.slice_id for event in it.heard.take(2)} == {A, B}
    files.close()


def test_close_waits_for_a_read_that_hangs_and_reports_no_event(stored: Stored) -> None:
    with running(stored, in_memory(stored), fault=lambda _: "hang") as it:
        it.memory.begin_read(A, is_prefetch=False)
        it.engine.wait_until_hanging()
        assert not it.memory.close(0.5)
        told = it.heard.events[:]  # of what hangs, it may have been told that it is given up
        it.memory.begin_read(B, is_prefetch=False)
        it.engine.release()
    assert it.heard.events == told
    assert {event.slice_id for event in told} <= {A}


def test_close_waits_for_the_event_being_reported(stored: Stored) -> None:
    is_told, may_end = threading.Event(), threading.Event()
    ended: list[MemoryEvent] = []

    def listen(event: MemoryEvent) -> None:
        is_told.set()
        assert may_end.wait(30)
        ended.append(event)

    with running(stored, in_memory(stored), fault=lambda _: "hang", listen=listen) as it:
        it.memory.begin_read(A, is_prefetch=False)
        assert is_told.wait(30)  # that it is given up
        threading.Timer(0.2, may_end.set).start()
        assert not it.memory.close(30)
        assert [event.slice_id for event in ended] == [A]


def test_memory_is_kept_while_an_event_is_told_for_longer_than_closing_waits(
    stored: Stored,
) -> None:
    is_told, may_end = threading.Event(), threading.Event()
    first = Span(offset_bytes=0, size_bytes=1)

    def listen(event: MemoryEvent) -> None:
        is_told.set()
        assert may_end.wait(10)

    with running(stored, in_memory(stored), listen=listen) as it:
        it.memory.begin_read(A, is_prefetch=False)
        assert is_told.wait(30)
        assert not it.memory.close(0.05)
        assert it.arena.views([first])[0].nbytes == 1  # whoever is told may still look
        may_end.set()
    assert it.arena.views([first])[0].nbytes == 0


def test_a_listener_that_breaks_does_not_stop_the_reading(stored: Stored) -> None:
    heard = Heard()

    def listen(event: MemoryEvent) -> None:
        heard(event)
        if event.slice_id == A:
            raise ZeroDivisionError("a bug")

    with running(stored, in_memory(stored), listen=listen) as it:
        for cluster in (A, B):
            it.memory.begin_read(cluster, is_prefetch=False)
        assert {event.slice_id for event in heard.wait(2)} == {A, B}

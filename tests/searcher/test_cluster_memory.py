"""Clusters in memory: what arrives, what breaks and why, what is given back."""

from __future__ import annotations

import gc
import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from carpool.clock import SystemClock
from carpool.disk.pages import PageLayout, choose_layout, dense
from carpool.disk.segments import ClusterExtent, SegmentWriter, plan_extents, segment_name
from carpool.errors import CorruptionError, RetryableError
from carpool.telemetry.metrics import Metrics
from carpool.testing.disk import Fault, FaultyDisk
from schemas.record import ClusterId
from searcher.cache.arena import Arena, Span
from searcher.cache.cluster_memory import ClusterMemory, MemoryEvent, ReadBroke, ReadDone, ReadRules, SpaceFreed
from searcher.events import NoEvents
from searcher.store.engine import BlockEngine, BlockRead, CancelledRead
from searcher.store.files import SegmentFiles
from searcher.store.memory import MemoryEngine
from searcher.store.none import NoEngine
from searcher.store.opening import EngineName, open_engine
from searcher.store.threads import ThreadEngine
from tests.searcher.engines import HAS_IO_URING, kernel_read_bytes

GENERATION = 0xC0FFEE
DIMENSION = 24
ROW_COUNTS = (700, 0, 1, 330, 42, 512, 900, 77)
A, B, C, D = (ClusterId(c) for c in (0, 3, 5, 6))
ALL = tuple(ClusterId(c) for c in range(len(ROW_COUNTS)))


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Segments on disk, and the rows in them."""

    folder: Path
    layout: PageLayout
    extents: tuple[ClusterExtent, ...]
    vectors: tuple[npt.NDArray[np.float32], ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(self.folder / segment_name(n) for n in range(self.extents[-1].segment + 1))

    def contents(self) -> list[bytes]:
        return [path.read_bytes() for path in self.paths]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return store(tmp_path_factory.mktemp("segments"), ROW_COUNTS, DIMENSION)


def store(folder: Path, row_counts: tuple[int, ...], dimension: int, *, segment_bytes_max: int = 200_000) -> Stored:
    layout = choose_layout(dimension, "float32")
    extents = plan_extents(layout, row_counts, segment_bytes_max=segment_bytes_max)
    writer = SegmentWriter(folder, layout=layout, generation=GENERATION, extents=extents)
    generator = np.random.default_rng(5)
    vectors = tuple(generator.standard_normal((count, dimension), dtype=np.float32) for count in row_counts)
    for cluster, rows in enumerate(vectors):
        writer.append(cluster, rows, np.arange(len(rows), dtype=np.int64) + 1000 * cluster)
    writer.close()
    return Stored(folder=folder, layout=layout, extents=extents, vectors=vectors)


class Heard:
    """What was told, in order; and a place to wait for it."""

    def __init__(self) -> None:
        self.events: list[MemoryEvent] = []
        self.changed = threading.Condition()

    def __call__(self, event: MemoryEvent) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def wait(self, count: int) -> list[MemoryEvent]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.events) >= count, timeout=30), self.events
            return self.events[:]

    def take(self, count: int) -> list[MemoryEvent]:
        """The next `count` events, forgotten here."""
        events = self.wait(count)[:count]
        with self.changed:
            del self.events[:count]
        return events


@dataclass(frozen=True, kw_only=True)
class Running:
    memory: ClusterMemory
    engine: FaultyDisk[BlockRead]
    heard: Heard
    metrics: Metrics
    arena: Arena

    def read(self, *clusters: ClusterId, is_prefetch: bool = False) -> dict[ClusterId, MemoryEvent]:
        for cluster in clusters:
            self.memory.begin_read(cluster, is_prefetch=is_prefetch)
        return {event.cluster: event for event in self.heard.take(len(clusters))}

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"carpool_{name}", labels or None) or 0.0


@contextmanager
def running(
    stored: Stored,
    inner: BlockEngine,
    *,
    arena_bytes: int = 2 << 20,
    block_pages: int = 2,
    read_pages: int = 5,
    attempts: int = 2,
    timeout_us: int = 60_000_000,
    fault: Callable[[BlockRead], Fault] = lambda _: None,
    listen: Callable[[MemoryEvent], None] | None = None,
) -> Iterator[Running]:
    """Small blocks and reads, so that clusters come in many pieces. `listen` hears the events, in the place of `heard`."""
    arena = Arena(arena_bytes, block_pages * stored.layout.page_bytes)
    metrics, heard = Metrics(), Heard()
    engine = FaultyDisk(inner, fault)
    memory = ClusterMemory(
        layout=stored.layout,
        extents=stored.extents,
        generation=GENERATION,
        paths=[path.name for path in stored.paths],
        arena=arena,
        engine=engine,
        rules=ReadRules(
            attempts=attempts,
            timeout_us=timeout_us,
            block_bytes_max=read_pages * stored.layout.page_bytes,
            watch_us=5_000,
        ),
        metrics=metrics,
        clock=SystemClock(),
        events=NoEvents(),
    )
    memory.start(listen or heard)
    try:
        yield Running(memory=memory, engine=engine, heard=heard, metrics=metrics, arena=arena)
        memory.check_integrity()
    finally:
        engine.release()
        assert memory.close(30)


def in_memory(stored: Stored) -> MemoryEngine:
    return MemoryEngine(stored.contents(), clock=SystemClock())


def check_rows(memory: ClusterMemory, stored: Stored, cluster: ClusterId) -> None:
    pages = memory.pages(cluster)
    rows = dense(pages)
    assert np.array_equal(rows.vectors, stored.vectors[cluster])
    assert rows.rows.tolist() == [1000 * cluster + n for n in range(len(stored.vectors[cluster]))]
    assert not any(piece.flags.writeable for piece in pages.pieces)


def test_every_cluster_arrives_whole_whatever_blocks_and_reads_are_cut_to(stored: Stored) -> None:
    for block_pages, read_pages in itertools.product((1, 3, 16), (1, 2, 7, 100)):
        with running(stored, in_memory(stored), block_pages=block_pages, read_pages=read_pages) as it:
            events = it.read(*ALL)
            assert all(isinstance(event, ReadDone) for event in events.values())
            assert it.memory.residents() == set(ALL)
            for cluster in ALL:
                check_rows(it.memory, stored, cluster)
            assert max(read.size_bytes for read in it.engine.seen) <= read_pages * stored.layout.page_bytes
            total_bytes = sum(extent.size_bytes for extent in stored.extents)
            assert sum(read.size_bytes for read in it.engine.seen) == total_bytes
            assert it.sample("bytes_read_total", purpose="demand") == total_bytes


def test_scattered_clusters_are_read_into_their_pieces(stored: Stored) -> None:
    """Every second small cluster is evicted, and a large one takes the holes."""
    small = (ClusterId(2), ClusterId(4), ClusterId(7), B)
    # Exactly what holds the large one once the second and the last of the small ones are gone.
    arena_bytes = sum(stored.extents[cluster].size_bytes for cluster in (small[0], small[2], D))
    with running(stored, in_memory(stored), block_pages=1, arena_bytes=arena_bytes) as it:
        for cluster in small:
            assert isinstance(it.read(cluster)[cluster], ReadDone)
        it.memory.evict(small[1])
        it.memory.evict(small[3])
        assert isinstance(it.read(D)[D], ReadDone)
        assert it.arena.free_bytes == 0
        assert len(it.memory.pages(D).pieces) == 2
        check_rows(it.memory, stored, D)
        check_rows(it.memory, stored, small[0])
        check_rows(it.memory, stored, small[2])


def test_damage_in_any_page_of_a_scattered_cluster_is_found(stored: Stored) -> None:
    """A block read may end in several places of the arena: each of them is looked at."""
    small = (ClusterId(2), ClusterId(4), ClusterId(7), B)
    arena_bytes = sum(stored.extents[cluster].size_bytes for cluster in (small[0], small[2], D))
    contents = [bytearray(content) for content in stored.contents()]
    extent = stored.extents[D]
    engine = MemoryEngine(contents, clock=SystemClock())  # type: ignore[arg-type]  # bytes that a test may change
    with running(stored, engine, block_pages=1, arena_bytes=arena_bytes) as it:
        it.read(*small)
        it.memory.evict(small[1])
        it.memory.evict(small[3])
        assert any(len(read.buffers) > 1 for read in _reads_of(it, D))
        for page in range(extent.page_count):
            at_bytes = extent.offset_bytes + page * stored.layout.page_bytes
            contents[extent.segment][at_bytes + 17] ^= 4
            broken = it.read(D)[D]
            assert isinstance(broken, ReadBroke), f"page {page} was taken"
            assert isinstance(broken.error, CorruptionError)
            assert broken.error.offset_bytes == at_bytes
            contents[extent.segment][at_bytes + 17] ^= 4


def _reads_of(it: Running, cluster: ClusterId) -> list[BlockRead]:
    """Reads a cluster, forgets it, and returns the block reads that it took."""
    before = len(it.engine.seen)
    assert isinstance(it.read(cluster)[cluster], ReadDone)
    it.memory.evict(cluster)
    return it.engine.seen[before:]


def test_what_is_evicted_gives_its_blocks_back(stored: Stored) -> None:
    with running(stored, in_memory(stored)) as it:
        free_bytes = it.arena.free_bytes
        it.read(A, B)
        assert it.arena.free_bytes == free_bytes - it.memory.arena_bytes(A) - it.memory.arena_bytes(B)
        assert it.sample("resident_bytes", kind="resident") == it.memory.arena_bytes(A) + it.memory.arena_bytes(B)
        it.memory.evict(A)
        it.memory.evict(B)
        assert it.arena.free_bytes == free_bytes
        assert it.sample("resident_bytes", kind="resident") == 0


def test_without_room_a_read_is_a_fault_of_the_planner(stored: Stored) -> None:
    with running(stored, in_memory(stored), arena_bytes=100_000) as it:
        it.read(A)
        with pytest.raises(AssertionError, match="no room"):
            it.memory.begin_read(D, is_prefetch=False)


def test_damage_breaks_that_cluster_only_names_the_place_and_is_not_read_again(stored: Stored) -> None:
    contents = [bytearray(content) for content in stored.contents()]
    extent = stored.extents[B]
    page = 2
    contents[extent.segment][extent.offset_bytes + page * stored.layout.page_bytes + 17] ^= 4
    with running(stored, MemoryEngine([bytes(c) for c in contents], clock=SystemClock())) as it:
        events = it.read(A, B, C)
        broken = events[B]
        assert isinstance(broken, ReadBroke)
        assert isinstance(broken.error, CorruptionError)
        assert broken.error.path == segment_name(extent.segment)
        assert broken.error.offset_bytes == extent.offset_bytes + page * stored.layout.page_bytes
        assert f"cluster {B} " in str(broken.error)
        assert isinstance(events[A], ReadDone)
        assert isinstance(events[C], ReadDone)
        assert it.memory.residents() == {A, C}
        assert it.sample("clusters_damaged_total") == 1
        assert len({read.offset_bytes for read in it.engine.seen}) == len(it.engine.seen)


def test_a_cluster_of_another_place_never_passes_for_this_one(stored: Stored) -> None:
    swapped = list(stored.extents)
    one, two = stored.extents[C], stored.extents[C + 1]
    swapped[C] = ClusterExtent(
        cluster=C,
        segment=two.segment,
        offset_bytes=two.offset_bytes,
        size_bytes=one.size_bytes,
        page_count=one.page_count,
        row_count=one.row_count,
    )
    other = Stored(folder=stored.folder, layout=stored.layout, extents=tuple(swapped), vectors=stored.vectors)
    with running(other, in_memory(stored)) as it:
        broken = it.read(C)[C]
        assert isinstance(broken, ReadBroke)
        assert isinstance(broken.error, CorruptionError)


def test_a_segment_that_ends_early_is_damage_that_names_the_cluster(stored: Stored, tmp_path: Path) -> None:
    paths = []
    for path in stored.paths:
        paths.append(tmp_path / path.name)
        paths[-1].write_bytes(path.read_bytes())
    extent = stored.extents[D]
    end_bytes = extent.offset_bytes + extent.size_bytes - 4096
    os.truncate(paths[extent.segment], end_bytes)
    files = SegmentFiles(paths, "require")
    with running(stored, ThreadEngine(files.read_block, depth=3, prefetch_depth=1, clock=SystemClock())) as it:
        events = it.read(A, D)
        broken = events[D]
        assert isinstance(broken, ReadBroke)
        assert isinstance(broken.error, CorruptionError)
        assert broken.error.offset_bytes == end_bytes
        assert f"cluster {D} " in str(broken.error)
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


def test_a_block_that_goes_on_failing_breaks_its_cluster_after_so_many_attempts(stored: Stored) -> None:
    offset_bytes = stored.extents[B].offset_bytes

    def fail(read: BlockRead) -> Fault:
        is_bad = read.offset_bytes == offset_bytes and read.file == stored.extents[B].segment
        return RetryableError("the cable is out") if is_bad else None

    with running(stored, in_memory(stored), attempts=3, fault=fail) as it:
        free_bytes = it.arena.free_bytes
        events = it.read(A, B)
        broken = events[B]
        assert isinstance(broken, ReadBroke)
        assert isinstance(broken.error, RetryableError)
        assert f"cluster {B} " in str(broken.error)
        assert "the cable is out" in str(broken.error)
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

    monkeypatch.setattr("searcher.cache.cluster_reads.verify_pages", check)
    with running(stored, in_memory(stored)) as it:
        events = it.read(A, B)
        assert isinstance(events[B], ReadDone)
        broken = events[A]
        assert isinstance(broken, ReadBroke)
        assert isinstance(broken.error, RetryableError)
        assert "not now" in str(broken.error)
        it.memory.evict(B)
        assert it.arena.free_bytes == it.arena.size_bytes


def test_an_engine_without_anything_breaks_every_cluster_and_keeps_no_byte(stored: Stored) -> None:
    with running(stored, NoEngine(clock=SystemClock())) as it:
        events = it.read(A, B, C)
        assert all(isinstance(e, ReadBroke) and isinstance(e.error, RetryableError) for e in events.values())
        assert it.arena.free_bytes == it.arena.size_bytes


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
        events = {event.cluster: event for event in it.heard.take(2)}
        assert isinstance(events[A], ReadDone)
        broken = events[D]
        assert isinstance(broken, ReadBroke)
        assert isinstance(broken.error, CancelledRead)
        assert it.arena.free_bytes == it.arena.size_bytes - it.memory.arena_bytes(A)
        assert isinstance(it.read(D)[D], ReadDone)


def test_a_read_that_hangs_breaks_after_the_timeout_and_frees_its_room_when_it_comes_back(stored: Stored) -> None:
    place = (stored.extents[B].segment, stored.extents[B].offset_bytes)
    hangs = [True]

    def hang(read: BlockRead) -> Fault:
        return "hang" if hangs[0] and (read.file, read.offset_bytes) == place else None

    with running(stored, in_memory(stored), fault=hang) as it:
        events = it.read(A, B)
        assert isinstance(events[A], ReadDone)
        broken = events[B]
        assert isinstance(broken, ReadBroke)
        assert broken.is_stuck
        assert isinstance(broken.error, RetryableError)
        assert f"cluster {B} " in str(broken.error)
        assert "read_timeout_ms" in str(broken.error)
        assert it.memory.stuck_bytes == it.memory.arena_bytes(B) == it.sample("resident_bytes", kind="stuck")
        it.memory.check_integrity()
        hangs[0] = False
        assert isinstance(it.read(B)[B], ReadDone)  # also while the other read of it hangs
        check_rows(it.memory, stored, B)
        it.engine.release()
        assert it.heard.take(1) == [SpaceFreed(cluster=B)]
        assert it.memory.stuck_bytes == 0
        assert it.arena.free_bytes == it.arena.size_bytes - it.memory.arena_bytes(A) - it.memory.arena_bytes(B)


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
        assert {event.cluster for event in it.heard.take(4)} == {A, B, C, D}
        assert it.arena.free_bytes == it.arena.size_bytes


def test_clusters_that_hang_do_not_hold_up_the_others(stored: Stored) -> None:
    """As many hang as the engine reads at a time; the next ones are read as soon as those are given up."""
    release = threading.Event()
    hanging = {(stored.extents[cluster].segment, stored.extents[cluster].offset_bytes) for cluster in (A, B)}
    contents = stored.contents()

    def read_block(read: BlockRead) -> None:
        if (read.file, read.offset_bytes) in hanging:
            assert release.wait(30)
        start_bytes = read.offset_bytes
        for buffer in read.buffers:
            buffer[:] = contents[read.file][start_bytes : start_bytes + buffer.nbytes]
            start_bytes += buffer.nbytes

    inner = ThreadEngine(read_block, depth=2, prefetch_depth=1, clock=SystemClock())
    with running(stored, inner, timeout_us=300_000) as it:
        broken = it.read(A, B)
        assert all(isinstance(event, ReadBroke) and event.is_stuck for event in broken.values())
        for cluster in (C, D):
            assert isinstance(it.read(cluster)[cluster], ReadDone)
            check_rows(it.memory, stored, cluster)
        release.set()
        assert {event.cluster for event in it.heard.take(2)} == {A, B}


def test_after_closing_nothing_is_told_and_a_read_that_hangs_is_waited_for(stored: Stored) -> None:
    with running(stored, in_memory(stored), fault=lambda _: "hang") as it:
        it.memory.begin_read(A, is_prefetch=False)
        it.engine.wait_until_hanging()
        assert not it.memory.close(0.5)
        told = it.heard.events[:]  # of what hangs, it may have been told that it is given up
        it.memory.begin_read(B, is_prefetch=False)
        it.engine.release()
    assert it.heard.events == told
    assert {event.cluster for event in told} <= {A}


def test_closing_waits_for_what_is_being_told(stored: Stored) -> None:
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
        assert [event.cluster for event in ended] == [A]


def test_memory_is_kept_while_an_event_is_told_for_longer_than_closing_waits(stored: Stored) -> None:
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
    arena = Arena(1 << 20, stored.layout.page_bytes)
    memory = ClusterMemory(
        layout=stored.layout,
        extents=stored.extents,
        generation=GENERATION,
        paths=["one", "two", "three"],
        arena=arena,
        engine=in_memory(stored),
        rules=ReadRules(attempts=1, timeout_us=60_000_000),
        metrics=Metrics(),
        clock=SystemClock(),
        events=NoEvents(),
    )

    def listen(event: MemoryEvent) -> None:
        heard(event)
        if event.cluster == A:
            raise ZeroDivisionError("a bug")

    memory.start(listen)
    for cluster in (A, B):
        memory.begin_read(cluster, is_prefetch=False)
    assert {event.cluster for event in heard.wait(2)} == {A, B}
    assert memory.close(30)


def engine_over(kind: EngineName, files: SegmentFiles) -> BlockEngine:
    if kind == "io_uring" and not HAS_IO_URING:
        pytest.skip("the kernel refuses io_uring here")
    return open_engine(kind, files, depth=4, prefetch_depth=1, clock=SystemClock())


def resident_set_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("kind", ["io_uring", "threads"])
def test_a_hundred_rounds_of_faults_break_only_what_they_hit_and_leave_memory_as_it_was(
    stored: Stored, kind: EngineName
) -> None:
    """Failing, damaged, slow and hanging reads, through real files; each cluster breaks exactly if one of its reads did."""
    generator = random.Random(7)
    bad: dict[tuple[int, int], Fault] = {}
    files = SegmentFiles(stored.paths, "require")
    inner = engine_over(kind, files)
    faults: tuple[Fault, ...] = (RetryableError("no"), "flip", "hang", 0.002)
    expected = {"flip": CorruptionError, "hang": RetryableError}

    def fault(read: BlockRead) -> Fault:
        return bad.get((read.file, read.offset_bytes))

    with running(stored, inner, fault=fault) as it:
        sizes = []
        for _ in range(100):
            bad.clear()
            hit = {cluster: generator.choice(faults) for cluster in ALL if generator.random() < 0.15}
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
                    assert isinstance(event, ReadBroke), (cluster, what, event)
                    assert isinstance(event.error, expected.get(str(what), RetryableError))
                    assert f"cluster {cluster} " in str(event.error)
                    assert event.is_stuck == (what == "hang")
            stuck = [cluster for cluster, what in hit.items() if what == "hang"]
            assert it.memory.stuck_bytes == sum(it.memory.arena_bytes(cluster) for cluster in stuck)
            it.engine.release()
            assert {event.cluster for event in it.heard.take(len(stuck))} == set(stuck)
            assert it.arena.free_bytes == it.arena.size_bytes
            it.memory.check_integrity()
            sizes.append(resident_set_bytes())
        assert it.heard.events == []
        assert sizes[-1] - sizes[10] < 2 << 20, "the process has grown"
    files.close()


@pytest.mark.parametrize("kind", ["io_uring", "threads"])
def test_the_bytes_it_counts_are_those_that_the_kernel_counts(tmp_path: Path, kind: EngineName) -> None:
    """/proc/self/io, `read_bytes`: what this process, with all its threads, had fetched from storage."""
    large = store(tmp_path, (30_000, 20_000, 100, 45_000), DIMENSION, segment_bytes_max=6 << 20)
    for path in large.paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    files = SegmentFiles(large.paths, "require")
    with running(large, engine_over(kind, files), arena_bytes=16 << 20, block_pages=16, read_pages=256) as it:
        before = kernel_read_bytes()
        events = it.read(*(ClusterId(cluster) for cluster in range(4)))
        assert all(isinstance(event, ReadDone) for event in events.values())
        counted = it.sample("bytes_read_total", purpose="demand")
        assert counted == sum(extent.size_bytes for extent in large.extents)
        assert counted == pytest.approx(kernel_read_bytes() - before, rel=0.02)
    files.close()


def test_the_memory_of_the_arena_goes_back_to_the_system_when_it_is_closed(stored: Stored) -> None:
    gc.collect()  # or what the tests before left goes back meanwhile
    before_bytes = resident_set_bytes()
    with running(stored, in_memory(stored), arena_bytes=64 << 20) as it:
        spans = it.arena.allocate(60 << 20)
        assert spans is not None
        for view in it.arena.views(spans):
            view[:] = bytes([1]) * view.nbytes
        del view
        it.arena.free(spans)
        it.read(*ALL)
        it.engine.seen.clear()  # it keeps the buffers of every read
        assert resident_set_bytes() - before_bytes > 55 << 20
    assert resident_set_bytes() - before_bytes < 8 << 20

"""One suite over every block engine, then what is special about files and io_uring."""

from __future__ import annotations

import errno
import mmap
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from carpool.clock import SystemClock
from carpool.errors import ConfigError, CorruptionError, RetryableError
from searcher.store import ring
from searcher.store.engine import BlockEngine, BlockError, BlockRead, CancelledRead
from searcher.store.files import SegmentFiles
from searcher.store.io_uring import IoUringEngine
from searcher.store.memory import MemoryEngine
from searcher.store.none import NoEngine
from searcher.store.opening import EngineName, open_engine
from searcher.store.threads import ThreadEngine
from searcher.store.waiting import WaitingReads
from tests.searcher.engines import HAS_IO_URING, kernel_read_bytes

PAGE = 4096
SIZES = (96 * PAGE, 40 * PAGE)

ENGINE_NAMES: tuple[EngineName, ...] = ("io_uring", "threads") if HAS_IO_URING else ("threads",)
ENGINES = ("io_uring", "io_uring buffered", "threads", "threads buffered", "memory", "none")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    folder = tmp_path_factory.mktemp("segments")
    generator = random.Random(3)
    paths = tuple(folder / f"{number}.seg" for number in range(len(SIZES)))
    for path, size_bytes in zip(paths, SIZES, strict=True):
        path.write_bytes(generator.randbytes(size_bytes))
    return paths


class Ends:
    """What an engine told, and which thread told it."""

    def __init__(self) -> None:
        self.errors: dict[int, BlockError | None] = {}
        self.times: Counter[int] = Counter()
        self.threads: set[int] = set()
        self.latencies_us: list[int] = []
        self.changed = threading.Condition()

    def __call__(self, token: int, error: BlockError | None, latency_us: int) -> None:
        with self.changed:
            self.errors[token] = error
            self.times[token] += 1
            self.threads.add(threading.get_ident())
            self.latencies_us.append(latency_us)
            self.changed.notify_all()

    def wait(self, count: int) -> dict[int, BlockError | None]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.errors) >= count, timeout=30), self.errors
            assert set(self.times.values()) <= {1}, "a read was told twice"
            return dict(self.errors)


def refuse_direct(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Makes the file system refuse O_DIRECT when a file is opened, or when it is read, as some do."""
    real_open, real_preadv, direct = os.open, os.preadv, set()

    def fake_open(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_DIRECT and at == "open":
            raise OSError(errno.EINVAL, "Invalid argument")
        file = real_open(path, flags, *rest, **named)
        if flags & os.O_DIRECT:
            direct.add(file)
        else:
            direct.discard(file)
        return file

    def fake_preadv(file: int, *rest: Any) -> int:
        if file in direct and at == "read":
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_preadv(file, *rest)

    monkeypatch.setattr(os, "open", fake_open)
    monkeypatch.setattr(os, "preadv", fake_preadv)


Make = Callable[..., BlockEngine]


@pytest.fixture(params=ENGINES)
def make(request: pytest.FixtureRequest, paths: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes engines of one kind over the files; closes them."""
    opened: list[tuple[BlockEngine, SegmentFiles | None]] = []
    kind: str = request.param
    if kind.startswith("io_uring") and not HAS_IO_URING:
        pytest.skip("the kernel refuses io_uring here")

    def made(depth: int = 4, prefetch_depth: int = 1, of: Sequence[Path] = paths) -> BlockEngine:
        engine: BlockEngine
        files = None
        match kind:
            case "memory":
                engine = MemoryEngine([path.read_bytes() for path in of], clock=SystemClock())
            case "none":
                engine = NoEngine(clock=SystemClock())
            case _:
                if kind.endswith("buffered"):
                    refuse_direct(monkeypatch, "open")
                files = SegmentFiles(of, "auto" if kind.endswith("buffered") else "require")
                if kind.startswith("threads"):
                    engine = ThreadEngine(
                        files.read_block, depth=depth, prefetch_depth=prefetch_depth, clock=SystemClock()
                    )
                else:
                    engine = IoUringEngine(files, depth=depth, prefetch_depth=prefetch_depth, clock=SystemClock())
        opened.append((engine, files))
        return engine

    yield made
    for engine, files in opened:
        assert engine.close(30)
        assert engine.close(30), "closing twice"
        if files is not None:
            files.close()


def buffer_of(size_bytes: int) -> memoryview:
    return memoryview(mmap.mmap(-1, size_bytes))


def block(token: int, file: int, first_page: int, *pages: int, is_prefetch: bool = False) -> BlockRead:
    """A read from `first_page` of `file` into buffers of so many pages."""
    return BlockRead(
        token=token,
        file=file,
        offset_bytes=first_page * PAGE,
        buffers=tuple(buffer_of(count * PAGE) for count in pages),
        is_prefetch=is_prefetch,
    )


def content(read: BlockRead) -> bytes:
    return b"".join(bytes(buffer) for buffer in read.buffers)


def expected(paths: Sequence[Path], read: BlockRead) -> bytes:
    return paths[read.file].read_bytes()[read.offset_bytes : read.offset_bytes + read.size_bytes]


def test_every_read_ends_once_with_its_bytes_or_a_typed_error(make: Make, paths: tuple[Path, ...]) -> None:
    generator = random.Random(1)
    for depth in (1, 3, 16):
        engine, ends = make(depth=depth), Ends()
        engine.start(ends)
        reads = []
        for token in range(1, 201):
            file = generator.randrange(2)
            pages = [generator.randint(1, 3) for _ in range(generator.randint(1, 5))]
            first_page = generator.randrange(SIZES[file] // PAGE - sum(pages))
            reads.append(block(token, file, first_page, *pages, is_prefetch=generator.random() < 0.3))
        while reads[(start := len(ends.errors)) :]:
            pass_ = reads[start:][:40]
            before = len(ends.errors)
            engine.submit(pass_)
            ends.wait(before + len(pass_))
        assert len(ends.errors) == 200
        for read in reads:
            if isinstance(engine, NoEngine):
                assert isinstance(ends.errors[read.token], RetryableError)
            else:
                assert ends.errors[read.token] is None
                assert content(read) == expected(paths, read)
        assert threading.get_ident() not in ends.threads
        assert all(latency_us >= 0 for latency_us in ends.latencies_us)
        assert engine.with_kernel_since(1 << 62) == ()


def test_a_read_past_the_end_is_damage_with_its_place(make: Make) -> None:
    engine, ends = make(), Ends()
    engine.start(ends)
    last_page = SIZES[1] // PAGE - 1
    engine.submit([block(1, 1, last_page, 1, 2), block(2, 1, last_page + 1, 1), block(3, 1, last_page, 1)])
    errors = ends.wait(3)
    if isinstance(engine, NoEngine):
        assert all(isinstance(error, RetryableError) for error in errors.values())
        return
    for token in (1, 2):
        error = errors[token]
        assert isinstance(error, CorruptionError)
        assert error.offset_bytes == SIZES[1]
    assert errors[3] is None


def test_what_is_cancelled_or_promoted_still_ends_exactly_once(make: Make, paths: tuple[Path, ...]) -> None:
    engine, ends = make(depth=1), Ends()
    engine.start(ends)
    reads = [block(token, 0, token % 90, 4, is_prefetch=token % 2 == 0) for token in range(1, 301)]
    engine.submit(reads)
    engine.promote([2, 4, 6, 1000])
    engine.cancel([*range(100, 301), 1000])
    errors = ends.wait(300)
    for read in reads:
        error = errors[read.token]
        if isinstance(error, CancelledRead):
            assert read.token >= 100
        elif not isinstance(engine, NoEngine):
            assert error is None
            assert content(read) == expected(paths, read)


def test_closing_ends_what_waits_and_what_comes_later_is_not_read(make: Make) -> None:
    engine, ends = make(depth=2), Ends()
    engine.start(ends)
    engine.submit([block(token, 0, token % 80, 8) for token in range(1, 101)])
    assert engine.close(30)
    assert len(ends.errors) == 100
    late = block(101, 0, 0, 1)
    engine.submit([late])
    engine.cancel([101])
    engine.promote([101])
    assert not any(content(late))


def test_an_engine_that_was_never_started_is_closed_all_the_same(make: Make) -> None:
    assert make().close(0.0)


def test_no_buffer_is_kept_once_its_read_has_ended(make: Make) -> None:
    engine, ends = make(), Ends()
    engine.start(ends)
    for token in range(1, 30):
        pages = mmap.mmap(-1, PAGE)
        engine.submit([BlockRead(token=token, file=0, offset_bytes=0, buffers=(memoryview(pages),))])
        ends.wait(token)
    assert engine.close(30)
    del engine
    pages.close()  # raises BufferError where somebody has a view of it


def test_a_listener_that_breaks_does_not_stop_the_engine(make: Make) -> None:
    engine, ends = make(), Ends()

    def listen(token: int, error: BlockError | None, latency_us: int) -> None:
        ends(token, error, latency_us)
        if token == 1:
            raise ZeroDivisionError("a bug")

    engine.start(listen)
    engine.submit([block(1, 0, 0, 1)])
    ends.wait(1)
    engine.submit([block(2, 0, 0, 1)])
    ends.wait(2)


def test_a_read_that_cannot_be_begun_fails_and_the_others_go_on(make: Make) -> None:
    engine, ends = make(), Ends()
    engine.start(ends)
    engine.submit([block(1, 7, 0, 1), block(2, 0, 0, 1)])
    errors = ends.wait(2)
    assert isinstance(errors[1], RetryableError)
    assert isinstance(errors[2], RetryableError if isinstance(engine, NoEngine) else type(None))


# ---- the order of reads

Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("demand", "prefetch", "take", "end", "cancel", "promote", "give up")), st.integers(0, 20)
    ),
    max_size=60,
)


class DumbWaiting:
    """Lists that are searched from the front."""

    def __init__(self, depth: int, prefetch_depth: int) -> None:
        self.depth, self.prefetch_depth = depth, prefetch_depth
        self.demands: list[int] = []
        self.prefetches: list[int] = []
        self.taken: dict[int, bool] = {}
        self.given_up: list[int] = []

    def known(self) -> list[int]:
        return [*self.demands, *self.prefetches, *self.taken]

    def take(self) -> int | None:
        if len(self.taken) - len(self.given_up) < self.depth:
            if self.demands:
                self.taken[self.demands[0]] = False
                return self.demands.pop(0)
            if self.prefetches and sum(self.taken.values()) < self.prefetch_depth:
                self.taken[self.prefetches[0]] = True
                return self.prefetches.pop(0)
        return None

    def cancel(self, token: int) -> list[int]:
        dropped = [token] if token in self.demands or token in self.prefetches else []
        self.demands = [known for known in self.demands if known != token]
        self.prefetches = [known for known in self.prefetches if known != token]
        return dropped

    def give_up(self, token: int) -> None:
        if token in self.taken and token not in self.given_up and len(self.given_up) < self.depth:
            self.given_up.append(token)
            self.taken[token] = False

    def promote(self, token: int) -> None:
        if token in self.prefetches:
            self.prefetches.remove(token)
            self.demands.append(token)
        if token in self.taken:
            self.taken[token] = False


@given(STEPS, st.integers(1, 4), st.integers(0, 2))
def test_demands_go_first_and_the_kernel_never_has_more_than_it_may(
    steps: list[Step], depth: int, prefetch_depth: int
) -> None:
    waiting, dumb = WaitingReads(depth=depth, prefetch_depth=prefetch_depth), DumbWaiting(depth, prefetch_depth)
    for number, (what, choice) in enumerate(steps):
        known = dumb.known()
        chosen = known[choice % len(known)] if known else -1
        if what in ("demand", "prefetch"):
            is_prefetch = what == "prefetch"
            waiting.put([BlockRead(token=number, file=0, offset_bytes=0, buffers=(), is_prefetch=is_prefetch)])
            (dumb.prefetches if is_prefetch else dumb.demands).append(number)
        elif what == "take":
            read = waiting.take(number)
            assert (None if read is None else read.token) == dumb.take()
        elif what == "end" and chosen in dumb.taken:
            assert waiting.end(chosen, number) >= 0
            del dumb.taken[chosen]
            dumb.given_up = [token for token in dumb.given_up if token != chosen]
        elif what == "cancel":
            assert waiting.cancel([chosen]) == dumb.cancel(chosen)
        elif what == "promote":
            waiting.promote([chosen])
            dumb.promote(chosen)
        elif what == "give up":
            waiting.give_up([chosen])
            dumb.give_up(chosen)
        assert waiting.with_kernel == len(dumb.taken)
        assert waiting.with_kernel - waiting.given_up <= depth
        assert waiting.given_up == len(dumb.given_up) <= depth
        assert sorted(waiting.started_before(1 << 62)) == sorted(dumb.taken)
    assert sorted(waiting.cancel_all()) == sorted(dumb.demands + dumb.prefetches)


def test_what_the_kernel_has_had_for_long_is_known() -> None:
    waiting = WaitingReads(depth=4, prefetch_depth=1)
    waiting.put([block(token, 0, 0, 1) for token in (1, 2, 3)])
    for now_us in (10, 20):
        waiting.take(now_us)
    assert waiting.started_before(20) == (1,)
    assert waiting.started_before(21) == (1, 2)
    assert waiting.end(1, 35) == 25
    assert waiting.started_before(21) == (2,)


# ---- threads and files


def test_a_thread_that_hangs_holds_up_no_cancellation(paths: tuple[Path, ...]) -> None:
    go_on = threading.Event()

    def hang(_: BlockRead) -> None:
        assert go_on.wait(30)

    engine, ends = ThreadEngine(hang, depth=2, prefetch_depth=1, clock=SystemClock()), Ends()
    engine.start(ends)
    engine.submit([block(token, 0, 0, 1) for token in range(1, 6)])
    until_s = time.monotonic() + 30
    while len(engine.with_kernel_since(1 << 62)) < 2:
        assert time.monotonic() < until_s, "two threads have not begun"
        time.sleep(0.001)
    engine.cancel(range(1, 6))
    assert len(ends.wait(3)) == 3
    assert all(isinstance(error, CancelledRead) for error in ends.errors.values())
    assert engine.close(0.0) is False
    go_on.set()
    assert engine.close(30)
    assert [error for error in ends.wait(5).values() if error is None] == [None, None]


def test_reads_that_hang_and_are_given_up_leave_their_places_to_others() -> None:
    go_on = threading.Event()

    def hang(read: BlockRead) -> None:
        if read.token <= 2:
            assert go_on.wait(30)

    engine, ends = ThreadEngine(hang, depth=2, prefetch_depth=1, clock=SystemClock()), Ends()
    engine.start(ends)
    engine.submit([block(token, 0, 0, 1) for token in (1, 2)])
    while len(engine.with_kernel_since(1 << 62)) < 2:
        threading.Event().wait(0.001)
    engine.submit([block(token, 0, 0, 1) for token in (3, 4, 5)])
    assert ends.errors == {}
    engine.give_up([1, 2])
    assert ends.wait(3) == {3: None, 4: None, 5: None}
    assert engine.close(0.0) is False
    go_on.set()
    assert engine.close(30)
    assert len(ends.wait(5)) == 5


def test_an_error_of_the_kernel_may_be_retried_and_names_the_place(paths: tuple[Path, ...]) -> None:
    """An offset that is not aligned, which O_DIRECT refuses."""
    for kind in ENGINE_NAMES:
        files = SegmentFiles(paths, "require")
        engine, ends = open_engine(kind, files, depth=2, prefetch_depth=1, clock=SystemClock()), Ends()
        engine.start(ends)
        engine.submit([BlockRead(token=1, file=1, offset_bytes=100, buffers=(buffer_of(PAGE),))])
        error = ends.wait(1)[1]
        assert isinstance(error, RetryableError)
        assert "1.seg at byte 100 " in str(error)
        assert "Invalid argument" in str(error)
        assert engine.close(30)
        files.close()


def test_a_read_that_comes_in_pieces_is_put_together(paths: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    real_preadv, real_prepare = os.preadv, ring.Ring.prepare_read
    pieces = 0

    def preadv(file: int, buffers: Sequence[memoryview], at: int) -> int:
        return real_preadv(file, [memoryview(buffers[0])[:PAGE]], at)

    def prepare(self: ring.Ring, token: int, file: int, at: int, buffers: Sequence[memoryview]) -> object:
        nonlocal pieces
        pieces += 1
        return real_prepare(self, token, file, at, [buffers[0][:PAGE]])

    monkeypatch.setattr("searcher.store.files.os.preadv", preadv)
    monkeypatch.setattr(ring.Ring, "prepare_read", prepare)
    for kind in ENGINE_NAMES:
        files = SegmentFiles(paths, "require")
        engine, ends = open_engine(kind, files, depth=2, prefetch_depth=1, clock=SystemClock()), Ends()
        engine.start(ends)
        read = block(1, 0, 5, 3, 2)
        engine.submit([read])
        assert ends.wait(1) == {1: None}
        assert content(read) == expected(paths, read)
        assert engine.close(30)
        files.close()
    assert pieces == (5 if HAS_IO_URING else 0)


class Pipes(SegmentFiles):
    """Files that give what is written into them, when it is written."""

    def __init__(self, count: int) -> None:
        super().__init__((), "auto")
        self._ends = [os.pipe() for _ in range(count)]

    def descriptor(self, file: int) -> int:
        return self._ends[file][0]

    def write(self, file: int, size_bytes: int) -> None:
        assert os.write(self._ends[file][1], b"x" * size_bytes) == size_bytes

    def close(self) -> None:
        super().close()
        for end in (end for ends in self._ends for end in ends):
            os.close(end)


@pytest.mark.skipif(not HAS_IO_URING, reason="the kernel refuses io_uring here")
def test_reads_that_hang_and_come_in_pieces_all_end_while_as_many_others_begin() -> None:
    depth = 4
    files = Pipes(3 * depth)
    engine = IoUringEngine(files, depth=depth, prefetch_depth=1, clock=SystemClock())
    ends, is_telling, may_go_on = Ends(), threading.Event(), threading.Event()

    def hear(token: int, error: BlockError | None, latency_us: int) -> None:
        if token == depth:
            is_telling.set()
            assert may_go_on.wait(30)  # what ends meanwhile is found all at once
        ends(token, error, latency_us)

    engine.start(hear)
    reads = [BlockRead(token=at, file=at, offset_bytes=0, buffers=(buffer_of(2 * PAGE),)) for at in range(3 * depth)]
    for first in (0, depth):
        engine.submit(reads[first : first + depth])
        until_us = SystemClock().now_us() + 30_000_000
        while len(engine.with_kernel_since(until_us)) < first + depth:
            assert SystemClock().now_us() < until_us
        if first == 0:
            engine.give_up(range(depth))
    files.write(depth, 2 * PAGE)
    assert is_telling.wait(30)
    for hanging in (*range(depth), *range(depth + 1, 2 * depth)):
        files.write(hanging, PAGE)
    engine.submit(reads[2 * depth :])
    may_go_on.set()
    ends.wait(1)
    for at in range(3 * depth):
        if at != depth:
            files.write(at, PAGE if at < 2 * depth else 2 * PAGE)
    assert ends.wait(3 * depth) == dict.fromkeys(range(3 * depth))
    assert engine.close(30)
    files.close()


@pytest.mark.parametrize("at", ["open", "read"])
def test_a_file_system_without_o_direct_is_refused_with_what_to_do(
    paths: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    refuse_direct(monkeypatch, at)
    with pytest.raises(ConfigError, match='direct_io = "auto"'):
        SegmentFiles(paths, "require")


@pytest.mark.parametrize("at", ["open", "read"])
@pytest.mark.parametrize("kind", ENGINE_NAMES)
def test_with_auto_it_reads_through_the_page_cache_and_says_so_once(
    paths: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch, at: str, kind: EngineName
) -> None:
    refuse_direct(monkeypatch, at)
    dropped: list[tuple[int, int, int]] = []
    monkeypatch.setattr("searcher.store.files.os.posix_fadvise", lambda _, *given: dropped.append(given))
    with capture_logs() as logs:
        files = SegmentFiles(paths, "auto")
        engine, ends = open_engine(kind, files, depth=2, prefetch_depth=1, clock=SystemClock()), Ends()
        engine.start(ends)
        reads = [block(1, 0, 3, 2), block(2, 1, 0, 1)]
        engine.submit(reads)
        assert ends.wait(2) == {1: None, 2: None}
        assert engine.close(30)
        files.close()
    assert not files.is_direct
    assert [content(read) for read in reads] == [expected(paths, read) for read in reads]
    assert [line["event"] for line in logs] == ["buffered reads"]
    assert sorted(dropped) == [(0, PAGE, os.POSIX_FADV_DONTNEED), (3 * PAGE, 2 * PAGE, os.POSIX_FADV_DONTNEED)]


def test_files_in_memory_are_refused_or_read_as_what_has_no_o_direct(memory_folder: Path) -> None:
    path = memory_folder / "a.seg"
    path.write_bytes(bytes(PAGE))
    with pytest.raises(
        ConfigError, match=r"a\.seg is tmpfs, which keeps files in memory.*outside the budget.*\"auto\""
    ):
        SegmentFiles([path], "require")
    files = SegmentFiles([path], "auto")
    assert not files.is_direct
    files.close()


def test_o_direct_is_what_segments_are_read_with(paths: tuple[Path, ...]) -> None:
    files = SegmentFiles(paths, "require")
    assert files.is_direct
    files.close()
    files.close()


def test_a_segment_that_cannot_be_opened_is_refused_by_name_and_none_stays_open(
    paths: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for direct_io in ("require", "auto"):
        with pytest.raises(ConfigError, match=r"nowhere\.seg"):
            SegmentFiles((*paths, tmp_path / "nowhere.seg"), direct_io)
    refuse_direct(monkeypatch, "open")
    with pytest.raises(ConfigError, match=r"cannot open .*nowhere\.seg: No such file.*check the folder"):
        SegmentFiles((*paths, tmp_path / "nowhere.seg"), "auto")
    assert len(os.listdir("/proc/self/fd")) == before


# ---- which engine


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.ENOMEM])
def test_where_the_kernel_refuses_io_uring_auto_takes_threads_and_says_so(
    paths: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(ring, "_call", refuse)
    files = SegmentFiles(paths, "require")
    with capture_logs() as logs:
        engine = open_engine("auto", files, depth=2, prefetch_depth=1, clock=SystemClock())
    assert isinstance(engine, ThreadEngine)
    assert [line["event"] for line in logs] == ["no io_uring"]
    assert engine.close(0.0)
    with pytest.raises(ConfigError, match='engine = "auto"'):
        open_engine("io_uring", files, depth=2, prefetch_depth=1, clock=SystemClock())
    files.close()


def test_the_engines_leave_no_descriptor_open(paths: tuple[Path, ...]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for kind in ("auto", *ENGINE_NAMES):
        files = SegmentFiles(paths, "require")
        engine, ends = open_engine(kind, files, depth=2, prefetch_depth=1, clock=SystemClock()), Ends()
        engine.start(ends)
        engine.submit([block(1, 0, 0, 1)])
        ends.wait(1)
        assert engine.close(30)
        files.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_kernel_counts_the_bytes_that_were_asked_for(tmp_path: Path) -> None:
    """/proc/self/io, `read_bytes`: what this process, with all its threads, had fetched from storage."""
    path = tmp_path / "large.seg"
    path.write_bytes(random.Random(9).randbytes(16 << 20))
    with path.open("rb") as file:
        os.fsync(file.fileno())
    for kind in ENGINE_NAMES:
        files = SegmentFiles([path], "require")
        engine, ends = open_engine(kind, files, depth=4, prefetch_depth=1, clock=SystemClock()), Ends()
        engine.start(ends)
        before = kernel_read_bytes()
        engine.submit([block(token, 0, (token - 1) * 64, 64) for token in range(1, 65)])
        ends.wait(64)
        assert kernel_read_bytes() - before == pytest.approx(16 << 20, rel=0.02)
        assert engine.close(30)
        files.close()

"""Block engines, all of them alike: every read ends once, with its bytes or a typed error."""

from __future__ import annotations

import mmap
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from carpool.clock import SystemClock
from carpool.errors import CorruptionError, RetryableError
from searcher.store.engine import BlockEngine, BlockError, BlockRead, CancelledRead
from searcher.store.files import SegmentFiles
from searcher.store.io_uring_engine import IoUringEngine
from searcher.store.none import NoEngine
from searcher.store.threads import ThreadEngine
from tests.searcher.block_reads import (
    HAS_IO_URING,
    PAGE,
    SIZES,
    Ends,
    block,
    content,
    expected,
    refuse_direct,
)
from tests.searcher.memory_engine import MemoryEngine

ENGINES = ("io_uring", "io_uring buffered", "threads", "threads buffered", "memory", "none")
Make = Callable[..., BlockEngine]


@pytest.fixture(params=ENGINES)
def make(
    request: pytest.FixtureRequest, paths: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
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
                        files.read_block,
                        depth=depth,
                        prefetch_depth=prefetch_depth,
                        clock=SystemClock(),
                    )
                else:
                    engine = IoUringEngine(
                        files, depth=depth, prefetch_depth=prefetch_depth, clock=SystemClock()
                    )
        opened.append((engine, files))
        return engine

    yield made
    for engine, files in opened:
        assert engine.close(30)
        assert engine.close(30), "closing twice"
        if files is not None:
            files.close()


def test_every_read_ends_once_with_its_bytes_or_a_typed_error(
    make: Make, paths: tuple[Path, ...]
) -> None:
    generator = random.Random(1)
    for depth in (1, 3, 16):
        engine, ends = make(depth=depth), Ends()
        engine.start(ends)
        reads = []
        for token in range(1, 201):
            file = generator.randrange(2)
            pages = [generator.randint(1, 3) for _ in range(generator.randint(1, 5))]
            first_page = generator.randrange(SIZES[file] // PAGE - sum(pages))
            reads.append(
                block(token, file, first_page, *pages, is_prefetch=generator.random() < 0.3)
            )
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
    engine.submit(
        [block(1, 1, last_page, 1, 2), block(2, 1, last_page + 1, 1), block(3, 1, last_page, 1)]
    )
    errors = ends.wait(3)
    if isinstance(engine, NoEngine):
        assert all(isinstance(error, RetryableError) for error in errors.values())
        return
    for token in (1, 2):
        error = errors[token]
        assert isinstance(error, CorruptionError)
        assert error.offset_bytes == SIZES[1]
    assert errors[3] is None


def test_what_is_cancelled_or_promoted_still_ends_exactly_once(
    make: Make, paths: tuple[Path, ...]
) -> None:
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
        engine.submit(
            [BlockRead(token=token, file=0, offset_bytes=0, buffers=(memoryview(pages),))]
        )
        ends.wait(token)
    assert engine.close(30)
    del engine
    pages.close()  # raises BufferError if a view exists


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

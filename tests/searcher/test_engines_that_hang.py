"""Block engines over slow, hanging and piecemeal files: who waits for whom, and what the kernel
has.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.clock import SystemClock
from carpool.errors import RetryableError
from searcher.store import io_uring as ring
from searcher.store.engine import BlockEngine, BlockError, BlockRead, CancelledRead
from searcher.store.files import SegmentFiles
from searcher.store.io_uring_engine import IoUringEngine
from searcher.store.threads import ThreadEngine
from searcher.store.waiting import WaitingReads
from tests.searcher.block_reads import (
    ENGINE_NAMES,
    HAS_IO_URING,
    PAGE,
    Ends,
    block,
    buffer_of,
    content,
    engine_at_work,
    expected,
)

Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("demand", "prefetch", "take", "end", "cancel", "promote", "give up")),
        st.integers(0, 20),
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
    waiting, dumb = (
        WaitingReads(depth=depth, prefetch_depth=prefetch_depth),
        DumbWaiting(depth, prefetch_depth),
    )
    for number, (what, choice) in enumerate(steps):
        known = dumb.known()
        chosen = known[choice % len(known)] if known else -1
        if what in ("demand", "prefetch"):
            is_prefetch = what == "prefetch"
            waiting.put(
                [
                    BlockRead(
                        token=number, file=0, offset_bytes=0, buffers=(), is_prefetch=is_prefetch
                    )
                ]
            )
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


def test_reads_long_with_the_kernel_are_listed() -> None:
    waiting = WaitingReads(depth=4, prefetch_depth=1)
    waiting.put([block(token, 0, 0, 1) for token in (1, 2, 3)])
    for now_us in (10, 20):
        waiting.take(now_us)
    assert waiting.started_before(20) == (1,)
    assert waiting.started_before(21) == (1, 2)
    assert waiting.end(1, 35) == 25
    assert waiting.started_before(21) == (2,)


def wait_until_started(engine: BlockEngine, count: int) -> None:
    until_s = time.monotonic() + 30
    while len(engine.with_kernel_since(1 << 62)) < count:
        assert time.monotonic() < until_s, f"fewer than {count} reads have started"
        time.sleep(0.001)


# ---- threads and files


def test_a_thread_that_hangs_delays_no_cancellation(paths: tuple[Path, ...]) -> None:
    go_on = threading.Event()

    def hang(_: BlockRead) -> None:
        assert go_on.wait(30)

    engine, ends = ThreadEngine(hang, depth=2, prefetch_depth=1, clock=SystemClock()), Ends()
    engine.start(ends)
    engine.submit([block(token, 0, 0, 1) for token in range(1, 6)])
    wait_until_started(engine, 2)
    engine.cancel(range(1, 6))
    assert len(ends.wait(3)) == 3
    assert all(isinstance(error, CancelledRead) for error in ends.errors.values())
    assert engine.close(0.0) is False
    go_on.set()
    assert engine.close(30)
    assert [error for error in ends.wait(5).values() if error is None] == [None, None]


def test_reads_start_in_the_place_of_reads_that_were_given_up_each_time_the_disk_hangs() -> None:
    released = [threading.Event(), threading.Event()]

    def hang(read: BlockRead) -> None:
        if read.token % 10 <= 2:
            assert released[read.token // 10].wait(30)

    engine, ends = ThreadEngine(hang, depth=2, prefetch_depth=1, clock=SystemClock()), Ends()
    engine.start(ends)
    for first in (0, 10):  # the second time, the threads of the first time are idle
        engine.submit([block(first + token, 0, 0, 1) for token in (1, 2)])
        wait_until_started(engine, 2)
        engine.submit([block(first + token, 0, 0, 1) for token in (3, 4, 5)])
        time.sleep(0.05)  # idle threads look at the queue, and wait again
        assert len(ends.errors) == first // 2
        engine.give_up([first + 1, first + 2])
        assert not ends.wait(first // 2 + 3).keys() & {first + 1, first + 2}
        assert first == 0 or engine.close(0.0) is False
        released[first // 10].set()
        ends.wait(first // 2 + 5)
    assert engine.close(30)


def test_an_error_of_the_kernel_may_be_retried_and_names_the_place(paths: tuple[Path, ...]) -> None:
    """An offset that is not aligned, which O_DIRECT refuses."""
    for kind in ENGINE_NAMES:
        with engine_at_work(kind, paths) as (engine, ends):
            engine.submit(
                [BlockRead(token=1, file=1, offset_bytes=100, buffers=(buffer_of(PAGE),))]
            )
            error = ends.wait(1)[1]
            assert isinstance(error, RetryableError)
            assert "1.seg at byte 100 " in str(error)
            assert "Invalid argument" in str(error)


def test_a_read_that_comes_in_pieces_is_put_together(
    paths: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    real_preadv, real_prepare = os.preadv, ring.Ring.prepare_read
    pieces = 0

    def preadv(file: int, buffers: Sequence[memoryview], at: int) -> int:
        return real_preadv(file, [memoryview(buffers[0])[:PAGE]], at)

    def prepare(
        self: ring.Ring, token: int, file: int, at: int, buffers: Sequence[memoryview]
    ) -> object:
        nonlocal pieces
        pieces += 1
        return real_prepare(self, token, file, at, [buffers[0][:PAGE]])

    monkeypatch.setattr("searcher.store.files.os.preadv", preadv)
    monkeypatch.setattr(ring.Ring, "prepare_read", prepare)
    for kind in ENGINE_NAMES:
        with engine_at_work(kind, paths) as (engine, ends):
            read = block(1, 0, 5, 3, 2)
            engine.submit([read])
            assert ends.wait(1) == {1: None}
            assert content(read) == expected(paths, read)
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
    reads = [
        BlockRead(token=at, file=at, offset_bytes=0, buffers=(buffer_of(2 * PAGE),))
        for at in range(3 * depth)
    ]
    for first in (0, depth):
        engine.submit(reads[first : first + depth])
        wait_until_started(engine, first + depth)
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

"""The reader: what it yields is right, whatever the disk does, and no memory is lost."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from carpool.clock import SystemClock
from carpool.disk.checked_file import CheckedFile, CheckedFileWriter
from carpool.errors import CorruptionError, RetryableError
from searcher.settings import SearcherSettings
from searcher.store.arena import Arena
from searcher.store.files import SegmentFiles
from searcher.store.page_reads import PageBatch, ThreadPageReads
from searcher.store.reader import NO_MEMORY, Reader
from searcher.store.waker import Waker
from tests.clocks import HandClock
from tests.rig.faulty_disk import Fault, FaultyDisk, PageRead
from tests.searcher.faults import EVERY_FAULT, FAIL, Disks, no_fault
from tests.seed import SEED
from tests.waiting import WAIT_S, wait_until

PAGE = 4096
PAGES = 64
BLOCKS, BLOCK_PAGES = 3, 8


@dataclass
class Reading:
    """A reader of two files, and a disk that can be made to fail."""

    reader: Reader[str]
    disk: FaultyDisk
    content: list[bytes]

    def submit(self, owner: str, *reads: tuple[int, int, int]) -> PageBatch[str]:
        """Reads: file, first page, number of pages."""
        files, firsts, counts = np.array(reads, np.int64).T
        return self.reader.submit(owner, files, firsts * PAGE, counts * PAGE)

    def take(self, count: int) -> dict[str, PageBatch[str]]:
        """The next batches, by owner: `count`, and no more have come."""
        found: dict[str, PageBatch[str]] = {}

        def came() -> bool:
            self.reader.waker.wait(0.01)
            for batch in self.reader.ended():
                self.check(batch)
                found[batch.owner] = batch
            return len(found) >= count

        wait_until(came, lambda: found, every_s=0)
        assert len(found) == count, found
        self.reader.check_integrity()
        return found

    def check(self, batch: PageBatch[str]) -> None:
        """What is good is what was written, and there is an error for the rest."""
        for at, file in enumerate(batch.files):
            start, offset = int(batch.starts[at]), int(batch.offsets_bytes[at])
            good, size = int(batch.good_bytes[at]), int(batch.sizes_bytes[at])
            written = self.content[file][offset : offset + good]
            assert bytes(batch.buffer[start : start + good]) == written
            assert (good < size) == (at in batch.errors) and good % PAGE == 0


Begin = Callable[..., AbstractContextManager[Reading]]


@pytest.fixture(params=["at once", "aside"])
def begin(tmp_path: Path, request: pytest.FixtureRequest) -> Begin:
    """Readers that verify at once, or on a thread of their own."""
    sums, content = [], []
    for number, name in enumerate(("a", "b")):
        writer = CheckedFileWriter(tmp_path, name, build_id=5)
        content.append(np.random.default_rng(number).bytes(PAGES * PAGE))
        writer.append(content[-1])
        sums.append(CheckedFile.open(tmp_path / name, 5, writer.close()))

    @contextmanager
    def begin(timeout_us: int = 10_000_000) -> Iterator[Reading]:
        disks, waker = Disks(), Waker()
        reader: Reader[str] = Reader(
            [file.path for file in sums],
            Arena(BLOCKS * BLOCK_PAGES * PAGE, BLOCK_PAGES * PAGE),
            SearcherSettings(read_timeout_ms=timeout_us // 1_000, direct_io="auto"),
            waker,
            SystemClock(),
            sums=sums,
            verifies_aside=request.param == "aside",
            open_reads=disks,
        )
        try:
            yield Reading(reader, disks[0], content)
            reader.check_integrity()
        finally:
            disks[0].release()
            assert reader.close(WAIT_S) and reader.close(WAIT_S), "closing twice"
            waker.close()

    return begin


def on(file: int, page: int, fault: Fault) -> Callable[[PageRead], Fault]:
    """What happens to the reads of a file that begin at a page."""
    return lambda read: fault if read[:2] == (file, page * PAGE) else None


def test_memory_is_taken_when_a_batch_starts_and_is_free_when_it_was_taken(begin: Begin) -> None:
    with begin() as here:
        here.submit("one", (0, 3, 2), (1, 60, 4), (0, 0, 1))
        here.submit("two", (1, 5, 8))
        here.reader.check_integrity()
        assert here.reader.memory.free_bytes == BLOCK_PAGES * PAGE
        assert not here.take(2)["one"].errors
        assert here.reader.memory.free_bytes == here.reader.memory.size_bytes


def test_memory_is_kept_for_those_who_hold_it_or_took_it(begin: Begin) -> None:
    with begin() as here:
        here.submit("held", (0, 3, 2)).holders += 2
        batch = here.take(1)["held"]
        here.reader.let_go(batch)
        assert here.reader.memory.free_bytes < here.reader.memory.size_bytes
        here.reader.let_go(batch)
        assert here.reader.memory.free_bytes == here.reader.memory.size_bytes
        batch = here.submit("took", (0, 5, 2))
        spans, batch.spans = batch.spans, ()
        while here.reader.batches:
            list(here.reader.ended())
        here.reader.check_integrity(BLOCK_PAGES * PAGE)
        here.reader.memory.free(spans)


# ---- what is wrong


@pytest.mark.parametrize(("fault", "pages"), [("flip", 2), ("short", 2)])
def test_only_what_comes_before_damage_is_good_and_the_error_names_file_and_byte(
    begin: Begin, fault: Fault, pages: int
) -> None:
    with begin() as here:
        here.disk.fault = on(1, 8, fault)
        here.submit("one", (0, 8, 1), (1, 8, 4), (1, 20, 1))
        batch = here.take(1)["one"]
        assert batch.good_bytes.tolist() == [PAGE, pages * PAGE, PAGE]
        assert batch.bytes_read == (6 if fault == "flip" else 4) * PAGE
        assert list(batch.errors) == [1]
        error = batch.errors[1]
        assert isinstance(error, CorruptionError) and error.offset_bytes == 10 * PAGE
        assert fault == "short" or error.path.endswith("b")


def test_a_read_that_fails_leaves_the_others_good(begin: Begin) -> None:
    with begin() as here:
        here.disk.fault = on(0, 8, FAIL)
        here.submit("one", (0, 8, 1), (1, 8, 4))
        batch = here.take(1)["one"]
        assert batch.good_bytes.tolist() == [0, 4 * PAGE] and batch.errors == {0: FAIL}
        assert [read[:2] for read in here.disk.seen].count((0, 8 * PAGE)) == 2, "tried twice"


# ---- what hangs


def test_a_batch_that_hangs_is_given_up_and_keeps_its_memory_until_the_kernel_returns_it(
    begin: Begin,
) -> None:
    with begin(timeout_us=200_000) as here:
        here.disk.fault = on(0, 8, "hang")
        here.submit("hangs", (1, 8, 4), (0, 8, 1))
        assert here.reader.times_out_at_us is not None
        batch = here.take(1)["hangs"]
        assert batch.is_given_up and batch.good_bytes.tolist() == [4 * PAGE, 0]
        assert "read_timeout_ms" in str(batch.errors[1])
        assert here.reader.times_out_at_us is None and not here.reader.in_kernel
        assert here.reader.stuck_bytes == BLOCK_PAGES * PAGE and here.reader.no_memory is None
        here.submit("other", (0, 0, 2))
        assert not here.take(1)["other"].errors
        here.disk.release()
        wait_until(lambda: not (list(here.reader.ended()) or here.reader.stuck_bytes))
        assert here.reader.memory.free_bytes == here.reader.memory.size_bytes


def test_there_is_no_memory_once_reads_that_hang_have_all(begin: Begin) -> None:
    with begin(timeout_us=100_000) as here:
        here.disk.fault = lambda read: "hang"
        for owner in ("one", "two", "three"):
            assert here.reader.no_memory is None
            here.submit(owner, (0, 8, 1))
        assert here.reader.no_memory is None, "they may come yet"
        here.take(BLOCKS)
        assert NO_MEMORY in str(here.reader.no_memory)
        assert not here.reader.close(0.0)


class Pipes(SegmentFiles):
    """Files that give what is written into them, when it is written."""

    def __init__(self, paths: object, direct_io: object) -> None:
        super().__init__([], "auto")
        self.ends = [os.pipe() for _ in range(3)]
        self.begun = threading.Semaphore(0)

    def fill(self, file: int, view: memoryview, offset_bytes: int) -> int:
        self.begun.release()
        return os.readv(self.ends[file][0], [view])

    def write(self, file: int) -> None:
        assert os.write(self.ends[file][1], b"x" * PAGE) == PAGE

    def close(self) -> None:
        for end in (end for ends in self.ends for end in ends):
            os.close(end)
        self.ends = []


def test_threads_whose_reads_were_given_up_delay_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many hang as there are threads."""
    monkeypatch.setattr("searcher.store.reader.SegmentFiles", Pipes)
    clock, waker = HandClock(0), Waker()
    reader: Reader[int] = Reader(
        [],
        Arena(4 * PAGE, PAGE),
        SearcherSettings(read_timeout_ms=10),
        waker,
        clock,
        open_reads=lambda files, waker: ThreadPageReads(files, waker, clock, 2),
    )
    files = reader.files
    assert isinstance(files, Pipes)
    found: dict[int, PageBatch[int]] = {}

    def has_ended(owner: int) -> bool:
        found.update({batch.owner: batch for batch in reader.ended()})
        return owner in found

    for file in (0, 1):
        reader.submit(file, *np.array([[file], [0], [PAGE]]))
    assert not has_ended(0) and reader.times_out_at_us == 10_000
    assert files.begun.acquire(timeout=WAIT_S) and files.begun.acquire(timeout=WAIT_S)
    clock.time_us = 10_001
    assert has_ended(0) and has_ended(1) and found[0].is_given_up
    reader.submit(2, *np.array([[2], [0], [PAGE]]))
    files.write(2)
    wait_until(lambda: has_ended(2))
    assert not found[2].errors and reader.stuck_bytes == 2 * PAGE
    assert not reader.close(0.0)
    for file in (0, 1):
        files.write(file)
    assert reader.close(WAIT_S)
    waker.close()


# ---- all at once


def test_whatever_the_disk_does_nothing_wrong_is_good_and_no_memory_is_lost(begin: Begin) -> None:
    random = np.random.default_rng(SEED)
    faults = [None] * 12 + [*EVERY_FAULT]
    kinds: set[type] = set()
    with begin(timeout_us=50_000) as here:
        here.disk.fault = lambda read: faults[int(random.integers(len(faults)))]
        for number in range(150):
            if here.reader.memory.free_bytes:
                places = random.integers([0, 0, 1], [2, PAGES - 2, 3], (4, 3)).tolist()
                here.submit(str(number), *map(tuple, places))
                kinds |= {type(e) for each in here.take(1).values() for e in each.errors.values()}
            else:
                here.disk.release()
                list(here.reader.ended())
        here.disk.fault = no_fault
        here.disk.release()
        wait_until(lambda: not (list(here.reader.ended()) or here.reader.stuck_bytes))
        assert here.reader.memory.free_bytes == here.reader.memory.size_bytes
    assert kinds == {CorruptionError, RetryableError}

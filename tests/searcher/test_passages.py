"""Passages: what the document store would return, whatever the disk does."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.clock import SystemClock
from carpool.disk.documents import (
    DOCUMENTS_NAME,
    ENTRY_BYTES,
    OFFSETS_NAME,
    DocumentStore,
    DocumentWriter,
    Passage,
)
from carpool.errors import CorruptionError, ReadError, RetryableError
from carpool.telemetry.metrics import Metrics
from searcher.passages.open import open_passages
from searcher.passages.passage_reader import DOCUMENTS_FILE, OFFSETS_FILE, PassageReader
from searcher.plan.passage_reads import share_out
from searcher.settings import SearcherSettings
from tests.rig.faulty_disk import FaultyDisk
from tests.searcher.faults import EVERY_FAULT, FAIL, Disks, no_fault
from tests.seed import SEED

PAGE = 4096
BUILD_ID = 7

Found = dict[int, list[Passage] | ReadError]


def write_documents(folder: Path, texts_bytes: Sequence[int], seed: int = 1) -> None:
    """Writes documents whose texts have these sizes."""
    letters = np.random.default_rng(seed)
    writer = DocumentWriter(folder, BUILD_ID)
    for number, size_bytes in enumerate(texts_bytes):
        text = letters.integers(97, 123, size_bytes, np.uint8).tobytes().decode()
        writer.append(Passage(doc_id=f"d{number}", title=f"Title {number}", text=text))
    writer.close()


@dataclass
class Reading:
    """A reader of passages, its disk, and a store that reads the same documents one by one."""

    passages: PassageReader
    pages: FaultyDisk
    metrics: Metrics
    store: DocumentStore

    def read(self, results: Sequence[Sequence[int]]) -> Found:
        found = list(self.passages.read(results))
        assert len(found) == len(results) == len(dict(found))
        self.passages.check_integrity()
        return dict(found)

    def expected(self, results: Sequence[Sequence[int]]) -> Found:
        """What the store returns or raises for each result."""
        expected: Found = {}
        for position, rows in enumerate(results):
            try:
                expected[position] = self.store.get(rows)
            except CorruptionError as error:
                expected[position] = error
        return expected


@contextmanager
def reading(
    folder: Path,
    *,
    slots: int = 3,
    slot_pages: int = 4,
    timeout_us: int = 10_000_000,
    of_places: npt.NDArray[np.uint32] | None = None,
) -> Iterator[Reading]:
    """Opens a reader with small buffers; checks at the end that none was lost."""
    count = (folder / OFFSETS_NAME).stat().st_size // ENTRY_BYTES
    store = DocumentStore(folder, count, BUILD_ID, of_places)
    disks, metrics = Disks(), Metrics()
    settings = SearcherSettings(read_timeout_ms=timeout_us // 1_000)
    with mock.patch.multiple(
        "searcher.passages.open",
        PASSAGE_BUFFERS_BYTES=slots * slot_pages * PAGE,
        SLOT_PAGES=slot_pages,
    ):
        passages = open_passages(store.table, settings, metrics, SystemClock(), open_reads=disks)
    try:
        yield Reading(passages, disks[0], metrics, store)
        passages.check_integrity()
    finally:
        passages.close()
        store.close()
    assert passages._ranges.reader.waker.descriptor < 0, "a read did not end"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """500 documents, some larger than a page, and some than a buffer."""
    folder = tmp_path_factory.mktemp("documents")
    sizes = np.random.default_rng(2).integers(0, 1200, 500)
    sizes[::50] = 9_000
    sizes[[77, 499]] = 100_000
    write_documents(folder, sizes.tolist())
    return folder


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    """Documents that a test may damage."""
    write_documents(tmp_path, np.random.default_rng(3).integers(0, 3000, 400).tolist())
    return tmp_path


def random_results(documents: int, count: int, seed: int = 4) -> list[list[int]]:
    return np.random.default_rng(seed).integers(0, documents, (count, 5)).tolist()


def same(found: Found, expected: Found) -> None:
    """Errors must be of the same kind; where documents are damaged, the same ones."""
    assert found.keys() == expected.keys()
    for position, one in expected.items():
        if isinstance(one, CorruptionError):
            assert isinstance(found[position], CorruptionError), position
        else:
            assert found[position] == one, position


def test_passages_are_those_of_the_store_for_any_rows_with_repeats(folder: Path) -> None:
    of_places = np.random.default_rng(8).permutation(500).astype(np.uint32)

    @settings(max_examples=80, deadline=None)
    @given(results=st.lists(st.lists(st.integers(0, 499), max_size=12), max_size=12))
    def check(results: list[list[int]]) -> None:
        assert here.read(results) == here.expected(results)

    with reading(folder, of_places=of_places) as here:
        check()


def test_a_page_is_read_once_for_all_results_and_neighbours_in_one_read(folder: Path) -> None:
    results = [list(range(100, 140)), list(range(120, 160)), [150] * 3]
    with reading(folder, slot_pages=64) as here:
        assert here.read(results) == here.expected(results)
        (idx_offset, idx_size), (dat_offset, dat_size) = (
            (offset, size) for _, offset, size in here.pages.seen
        )
        first, last = here.store.table.entry_offset_bytes(100), 160 * ENTRY_BYTES - 1
        assert idx_offset == first // PAGE * PAGE
        assert idx_offset + idx_size == (last // PAGE + 1) * PAGE
        counted = here.metrics.registry.get_sample_value(
            "carpool_bytes_read_total", {"purpose": "passages"}
        )
        assert counted == idx_size + dat_size
        assert [file for file, _, _ in here.pages.seen] == [OFFSETS_FILE, DOCUMENTS_FILE]
        assert dat_offset % PAGE == dat_size % PAGE == 0


# ---- damage


def test_flipped_bits_fail_only_the_results_that_want_these_documents(own_folder: Path) -> None:
    results = random_results(400, 120)
    for name in (OFFSETS_NAME, DOCUMENTS_NAME):
        content = bytearray((own_folder / name).read_bytes())
        for place in np.random.default_rng(6).integers(0, len(content), 6).tolist():
            content[place] ^= 1 << place % 8
        (own_folder / name).write_bytes(content)
    with reading(own_folder) as here:
        found, expected = here.read(results), here.expected(results)
    same(found, expected)
    failed = [one for one in found.values() if isinstance(one, CorruptionError)]
    assert 0 < len(failed) < 60
    texts = {str(one) for one in expected.values() if isinstance(one, CorruptionError)}
    assert {str(one) for one in failed} == texts, "what the store says, too"


@pytest.mark.parametrize(("name", "cut_bytes"), [(OFFSETS_NAME, 1), (DOCUMENTS_NAME, PAGE)])
def test_a_file_that_was_cut_short_fails_only_the_results_that_want_its_end(
    own_folder: Path, name: str, cut_bytes: int
) -> None:
    results = [*random_results(400, 60), [395, 399], [390], list(range(200, 400))]
    with reading(own_folder, slot_pages=64) as here:
        size_bytes = (own_folder / name).stat().st_size
        os.truncate(own_folder / name, size_bytes - cut_bytes)
        found, expected = here.read(results), here.expected(results)
    same(found, expected)
    failed = [one for one in found.values() if isinstance(one, CorruptionError)]
    assert 0 < len(failed) < len(results) and all("ends at byte" in str(one) for one in failed)


# ---- a bad disk


def test_a_passing_error_is_tried_again_and_a_bad_page_fails_only_what_is_in_it(
    folder: Path,
) -> None:
    results = [[number] for number in range(101, 140)]
    with reading(folder, slot_pages=64) as here:
        expected = here.expected(results)
        here.pages.fault = lambda read: FAIL if len(here.pages.seen) == 2 else None  # a first try
        assert here.read(results) == expected
        *_, (_, bad_page, _) = here.pages.seen
        here.pages.fault = lambda read: (
            FAIL if 0 <= bad_page - read.offset_bytes < read.size_bytes else None
        )
        found = here.read(results)
    failed = {at: one for at, one in found.items() if isinstance(one, RetryableError)}
    assert 0 < len(failed) < 20 and all("the disk said no" in str(one) for one in failed.values())
    assert found == expected | failed


def test_a_disk_that_hangs_delays_a_batch_by_one_time_limit(folder: Path) -> None:
    results = random_results(500, 40)
    with reading(folder, slots=4, slot_pages=4, timeout_us=1_000_000) as here:
        expected = here.expected(results)
        for file in (OFFSETS_FILE, DOCUMENTS_FILE):
            here.pages.fault = lambda read, file=file: "hang" if read.file == file else None
            found = here.read(results)
            assert here.pages.hanging == 1, "nothing more was asked of it"
            assert all(isinstance(one, RetryableError) for one in found.values())
            here.pages.fault = no_fault
            here.pages.release()
        assert here.read(results) == expected


def test_windows_of_bad_reads_lose_no_query_and_no_buffer(folder: Path) -> None:
    random = np.random.default_rng(SEED)
    faults = [None] * 40 + [*EVERY_FAULT]
    results = random_results(500, 6 * 20)
    kinds: set[type] = set()
    with reading(folder, slot_pages=16, timeout_us=200_000) as here:
        expected = here.expected(results)
        here.pages.fault = lambda read: faults[int(random.integers(len(faults)))]
        for start in range(0, len(results), 6):
            found = here.read(results[start : start + 6])
            for position, one in found.items():
                assert not isinstance(one, list) or one == expected[start + position]
                kinds.add(type(one))
            if start % 5:
                here.pages.release()
        here.pages.fault = no_fault
        here.pages.release()
        assert here.read(results) == expected
    assert kinds == {list, CorruptionError, RetryableError}


# ---- the plan


@given(
    wanted=st.lists(st.lists(st.integers(0, 20), max_size=6), max_size=20),
    bytes_max=st.integers(1, 60),
)
def test_queries_share_a_read_while_their_documents_fit(
    wanted: list[list[int]], bytes_max: int
) -> None:
    size_bytes = {number: number for number in range(20)}  # of 20 nothing is stored
    shares = list(share_out(wanted, size_bytes, bytes_max))
    assert [position for share in shares for position in share] == list(range(len(wanted)))

    def total(positions: range) -> int:
        return sum({n: size_bytes.get(n, 0) for p in positions for n in wanted[p]}.values())

    assert all(len(share) == 1 or total(share) <= bytes_max for share in shares)
    for share in shares[:-1]:
        assert total(range(share.start, share.stop + 1)) > bytes_max, "one more would fit"

"""Codes that do not fit memory: the promises hold, and faults of the disk are survived."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from carpool.clock import SystemClock
from carpool.disk.index import open_index
from carpool.disk.settings import IndexSettings
from carpool.errors import CorruptionError, RetryableError
from carpool.telemetry.metrics import Metrics
from searcher.build import BothPlanes, open_searcher, uses_horizon
from searcher.codes.open import BUFFERS_BYTES, CodesPlane, choose_codes
from searcher.executor import SearchResult
from searcher.settings import SearcherSettings
from tests.rig.faulty_disk import Fault
from tests.searcher.codes_rig import Running, exact, questions, running
from tests.searcher.faults import EVERY_FAULT, FAIL, no_fault
from tests.searcher.helpers import SmallIndex
from tests.seed import SEED
from tests.waiting import wait_until

SHARE = 0.3
STEP = 64 << 10


@pytest.fixture(scope="module")
def index(codes_index: SmallIndex) -> SmallIndex:
    return codes_index


def codes_read(here: Running) -> int:
    return sum(size for _, _, size in here.code_pages.seen)


def test_a_window_reads_each_cluster_once_and_a_hot_cluster_stays(index: SmallIndex) -> None:
    # No scan of these proposes too few rows, and is repeated.
    searches = [replace(search, top_k=100) for search in questions(index, 100, 3)]
    with running(index, paged_share=SHARE) as here:
        results = here.search(searches)
        pieces = [(file, offset) for file, offset, _ in here.code_pages.seen]
        assert len(pieces) == len(set(pieces))
        rows_read = here.count("bytes_read_total", purpose="demand")
        assert rows_read == sum(size for _, _, size in here.pages.seen)
        assert here.count("bytes_read_total", purpose="codes") == codes_read(here)
        read = rows_read + codes_read(here)
        assert sum(result.bytes_read for result in results.values() if result) == read
        lone = replace(searches[0], key=1000, clusters=searches[0].clusters[:1])
        first = here.search([lone])[1000]
        before = codes_read(here)
        again = here.search([replace(lone, key=1001)])[1001]
        assert codes_read(here) == before
    assert first is not None and again is not None
    assert [probe.tier for probe in again.probes] == ["ram"]


@pytest.mark.parametrize(("fault", "kind"), [(FAIL, RetryableError), ("flip", CorruptionError)])
def test_codes_that_cannot_be_read_are_named_by_their_cluster(
    index: SmallIndex, fault: Fault, kind: type[Exception]
) -> None:
    searches = questions(index, 60, 5)
    with running(index, paged_share=SHARE) as here:
        here.code_pages.fault = lambda read: fault if read[:2] == (0, 0) else None
        found = here.search(searches)
        here.code_pages.fault = no_fault
        again = here.search([replace(search, key=search.key + 100) for search in searches])
    for search in searches:
        result = found[search.key]
        assert result is not None
        assert result.skipped == ((0,) if 0 in search.clusters else ())
        assert all(isinstance(error, kind) for error in result.errors)
        rest = exact(index, search, frozenset(result.skipped))
        assert len(set(rest) & set(result.best.rows.tolist())) >= len(rest) - 1
    assert any(0 in search.clusters for search in searches)
    assert all(result is not None and not result.skipped for result in again.values())


def test_windows_of_bad_reads_lose_no_query_and_no_buffer(index: SmallIndex) -> None:
    random = np.random.default_rng(SEED)
    faults = [None] * 12 + [*EVERY_FAULT]
    searches = questions(index, 20 * 6, 5)
    ended: list[SearchResult | None] = []
    with running(index, timeout_us=60_000, paged_share=SHARE) as here:
        for disk in (here.pages, here.code_pages):
            disk.fault = lambda read: faults[int(random.integers(len(faults)))]
        for start in range(0, len(searches), 6):
            ended += here.search(searches[start : start + 6]).values()
            here.pages.release()
            here.code_pages.release()
        for disk in (here.pages, here.code_pages):
            disk.fault = no_fault
            disk.release()
        numbers = count(1)  # a busy machine may take longer than the time-out

        def found_all() -> bool:
            more = 1000 * next(numbers)
            found = here.search([replace(one, key=one.key + more) for one in searches[:50]])
            return all(result is not None and not result.errors for result in found.values())

        wait_until(found_all, "reads still fail after the disk has recovered")
    assert len(ended) == 120 and all(result is not None for result in ended)


def test_codes_that_fit_are_all_in_memory(index: SmallIndex) -> None:
    opened = open_index(index.dir)
    codes = opened.open_codes()
    assert codes is not None
    for size_bytes, fit in ((codes.size_bytes, True), (codes.size_bytes - 1, False)):
        chosen = choose_codes(opened, size_bytes + BUFFERS_BYTES)
        assert (chosen is not None and chosen.paged_bytes is None) == fit
    opened.close()


def test_a_horizon_is_used_unless_all_codes_are_in_memory(index: SmallIndex) -> None:
    opened = open_index(index.dir)
    codes = opened.open_codes()
    assert codes is not None
    opened.close()
    least_bytes = next(
        size for size in count(codes.size_bytes, STEP) if not horizon_at(index, size)
    )
    assert horizon_at(index, least_bytes - STEP)
    for budget_bytes, fit in ((least_bytes, True), (least_bytes - STEP, False)):
        settings = SearcherSettings(budget_bytes=budget_bytes, direct_io="auto")
        searcher = open_searcher(
            settings,
            IndexSettings(dir=str(index.dir)),
            Metrics(),
            SystemClock(),
        )
        plane = searcher.plane
        by_codes = plane.codes if isinstance(plane, BothPlanes) else None
        assert fit == (isinstance(by_codes, CodesPlane) and len(by_codes.readers) == 1)
        searcher.close()
    assert uses_horizon(index.dir, SearcherSettings(search_mode="exact"))


def horizon_at(index: SmallIndex, budget_bytes: int) -> bool:
    return uses_horizon(index.dir, SearcherSettings(budget_bytes=budget_bytes))

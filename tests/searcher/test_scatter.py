"""Several searchers scan one query: the same ids as one searcher, and home needs none of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from schemas.group import lane_of
from schemas.record import Source
from schemas.retrieval import Probe
from schemas.scan import Scan
from searcher.codes import executor as codes_executor
from searcher.codes.load import ResidentCodes
from searcher.codes.source import ScanPart
from searcher.executor import ScanResult, Search, SearchGroup
from searcher.scatter.scan_records import result_of
from tests.searcher.codes_rig import (
    exact,
    missed,
    questions,
    running,
)
from tests.searcher.helpers import SmallIndex

LANES = 3
ADVANCE = ResidentCodes.advance


@pytest.fixture(scope="module")
def index(codes_index: SmallIndex) -> SmallIndex:
    return codes_index


def as_home(search: Search) -> Search:
    lanes = {each: lane_of(each, LANES) for each in search.clusters}
    home = lanes[search.clusters[0]]
    return replace(search, elsewhere=tuple(each for each in lanes if lanes[each] != home))


MADE_WORSE: dict[str, Callable[[Search, ScanResult], ScanResult | None]] = {
    "nothing": lambda search, scan: None,
    "other codes": lambda search, scan: replace(scan, codec="pq"),
    "a part": lambda search, scan: replace(
        scan, probes=(), rows=scan.rows[:0], estimates=scan.estimates[:0]
    ),
    "clusters not asked for": lambda search, scan: replace(
        scan, probes=(*scan.probes, Probe(cluster=search.clusters[0], tier="ram"))
    ),
    "rows of other clusters": lambda search, scan: replace(scan, probes=scan.probes[1:]),
    "rows that do not exist": lambda search, scan: replace(scan, rows=scan.rows + (1 << 40)),
    "fewer rows": lambda search, scan: replace(scan, count=5),
}


def test_what_the_others_cannot_scan_is_scanned_at_home(index: SmallIndex) -> None:
    searches = [home for each in questions(index, 40, 8) if (home := as_home(each)).elsewhere]
    asked = [
        replace(each, clusters=each.elsewhere, elsewhere=(), is_scan=True) for each in searches
    ]
    with running(index) as other, running(index, paged_share=0.3) as here:
        scans = other.search(asked)
        for number, worse in enumerate(MADE_WORSE.values()):
            again = [replace(each, key=each.key + 100 * number) for each in searches]
            here.executor.join(SearchGroup(searches=tuple(again)))
            for search in again:
                result = scans[search.key - 100 * number]
                assert result is not None and result.scan is not None
                here.executor.found_elsewhere(
                    search.key, search.elsewhere, worse(search, result.scan)
                )
            assert missed(index, again, here.take(len(again))) == 0


def test_a_lane_that_says_nothing_is_given_up(
    index: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes_executor, "ELSEWHERE_US", 200_000)
    searches = [as_home(search) for search in questions(index, 20, 8)]
    with running(index) as here:
        found = here.search(searches)
        late = ScanResult(
            codec="int4",
            probes=(),
            rows=np.empty(0, np.int64),
            estimates=np.empty(0, np.float32),
            count=1000,
            bytes_read=0,
        )
        for search in searches:  # nobody waits for them any more
            here.executor.found_elsewhere(search.key, search.elsewhere, late)
    assert missed(index, searches, found) == 0


def test_a_query_that_waits_for_others_can_be_dropped_and_can_expire(index: SmallIndex) -> None:
    searches = [as_home(search) for search in questions(index, 10, 8)]
    late = [replace(search, key=search.key + 100, deadline_us=1) for search in searches]
    with running(index) as here:
        here.executor.join(SearchGroup(searches=tuple(searches)))
        here.executor.drop([search.key for search in searches])
        assert set(here.search(late).values()) == {None}


def test_records_whose_numbers_make_no_sense_say_nothing() -> None:
    rows, estimates = np.arange(4, dtype="<i8"), np.ones(4, "<f4")

    def found(**fields: bytes) -> ScanResult | None:
        scan = Scan(
            index_version="v",
            source=Source(topic="t", partition=0, offset=0),
            grouper="g",
            window_id=0,
            lane=1,
            codec="int4",
            **{"rows": rows.tobytes(), "estimates": estimates.tobytes(), **fields},
        )
        return result_of(scan)

    good = found()
    assert good is not None and good.rows.tolist() == [0, 1, 2, 3]
    assert found(rows=b"1234567") is None
    assert found(estimates=estimates[:3].tobytes()) is None
    assert found(estimates=(estimates * np.nan).tobytes()) is None


def halves(codes: ResidentCodes) -> list[ScanPart]:
    """Each part in two, both at once."""
    found = []
    for part in ADVANCE(codes):
        middle = len(part.clusters) // 2
        found.append(replace(part, clusters=part.clusters[:middle]))
        found.append(replace(part, clusters=part.clusters[middle:]))
    return found


@pytest.mark.parametrize("is_scan", [False, True])
def test_a_query_whose_parts_end_in_one_scan_ends_once(
    index: SmallIndex, monkeypatch: pytest.MonkeyPatch, is_scan: bool
) -> None:
    monkeypatch.setattr(ResidentCodes, "advance", halves)
    searches = [replace(each, is_scan=is_scan) for each in questions(index, 40, 8)]
    with running(index, threads=1) as here:
        found = here.search(searches)
    for search in searches:
        result = found[search.key]
        assert result is not None and (result.scan is not None) == is_scan
        rows = result.best.rows if result.scan is None else result.scan.rows
        assert len(set(exact(index, search)) - set(rows.tolist())) <= 1

"""Several searchers scan one query: the same ids as one searcher, and home needs none of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

from schemas.group import lane_of
from schemas.query import SearchMode
from schemas.record import ClusterId, Source
from schemas.retrieval import Probe
from schemas.scan import Scan
from searcher.codes import executor as codes_executor
from searcher.codes.load import ResidentCodes
from searcher.codes.source import ScanPart
from searcher.executor import ScanResult, Search, SearchGroup, SearchResult
from searcher.scatter.scan_records import result_of
from tests.searcher.codes_rig import (
    Running,
    exact,
    make_index,
    missed,
    questions,
    running,
    with_mode,
)
from tests.searcher.helpers import SmallIndex

LANES = 3
ADVANCE = ResidentCodes.advance


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    return make_index(tmp_path_factory.mktemp("scattered"))


def home_of(search: Search) -> int:
    return lane_of(search.clusters[0], LANES)


def of_lane(search: Search, lane: int) -> tuple[ClusterId, ...]:
    return tuple(cluster for cluster in search.clusters if lane_of(cluster, LANES) == lane)


def as_home(search: Search) -> Search:
    here = of_lane(search, home_of(search))
    return replace(search, elsewhere=tuple(each for each in search.clusters if each not in here))


def scans_of(searches: Sequence[Search], lane: int) -> list[Search]:
    """The scans of a lane for the queries that are at home in another one."""
    return [
        replace(search, clusters=of_lane(search, lane), is_scan=True)
        for search in searches
        if home_of(search) != lane and of_lane(search, lane)
    ]


def scattered(lanes: Sequence[Running], searches: Sequence[Search]) -> dict[int, SearchResult]:
    """Searches as the services do, without the records between them."""
    found: dict[int, SearchResult] = {}
    by_key = {search.key: search for search in searches}
    owed = []
    for lane, here in enumerate(lanes):
        at_home = [as_home(search) for search in searches if home_of(search) == lane]
        scans = scans_of(searches, lane)
        here.executor.join(SearchGroup(searches=(*at_home, *scans)))
        owed.append(len(scans))
    for count, here in zip(owed, lanes, strict=True):
        while count:
            ((key, result),) = here.take(1).items()
            assert result is not None
            if result.scan is None:
                found[key] = result  # all its clusters are in one lane
                continue
            count -= 1
            asked = [probe.cluster for probe in result.scan.probes]
            home = lanes[home_of(by_key[key])]
            home.executor.found_elsewhere(key, asked, result.scan)
    for lane, here in enumerate(lanes):
        left = [key for key in by_key.keys() - found.keys() if home_of(by_key[key]) == lane]
        for key, result in here.take(len(left)).items():
            assert result is not None
            found[key] = result
    return found


@pytest.mark.parametrize(("mode", "paged_share"), [("default", None), ("margin", 0.3)])
def test_ids_scores_and_probes_are_those_of_one_searcher(
    index: SmallIndex, mode: SearchMode, paged_share: float | None
) -> None:
    searches = with_mode(questions(index, 120, 6), mode)
    with running(index) as alone:
        whole = alone.search(searches)
    with ExitStack() as stack:
        lanes = [stack.enter_context(running(index, paged_share=paged_share)) for _ in range(LANES)]
        found = scattered(lanes, searches)
    for search in searches:
        one, many = whole[search.key], found[search.key]
        assert one is not None
        assert many.best.rows.tolist() == one.best.rows.tolist()
        np.testing.assert_allclose(many.best.scores, one.best.scores, rtol=0, atol=1e-6)
        assert many.rows_read == one.rows_read and not many.errors
        assert [probe.cluster for probe in many.probes] == list(search.clusters)


MADE_WORSE: dict[str, Callable[[Search, ScanResult], ScanResult | None]] = {
    "nothing": lambda search, scan: None,
    "other codes": lambda search, scan: replace(scan, codec="rabitq2"),
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
            codec="rabitq4",
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
            codec="rabitq4",
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
        found.append(replace(part, clusters=part.clusters[:middle], is_last=False))
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

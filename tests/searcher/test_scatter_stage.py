"""The stage with scattered groups: it scans for other lanes, waits for them, and never for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from carpool.clock import SystemClock
from carpool.kafka.records import Output, TopicPartition
from schemas.codec import decode
from schemas.group import Group
from schemas.scan import Scan
from schemas.topics import GROUPS, SCANS
from tests.memory_broker.broker import MemoryBroker
from tests.memory_broker.table_log import MemoryScansLog
from tests.searcher.codes_rig import TOP_K, make_index, questions
from tests.searcher.helpers import (
    Running,
    SmallIndex,
    exact_top_k,
    group_of,
    make_unit,
    running,
)

LANES = 2
HERE = TopicPartition(GROUPS.name, 0)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    return make_index(tmp_path_factory.mktemp("stage"))


class Searchers:
    """Two searchers with a lane each, and the log of scans between them."""

    def __init__(self, index: SmallIndex, **settings: Any) -> None:
        self.index = index
        self.broker = MemoryBroker(SystemClock(), {SCANS.name: LANES, GROUPS.name: LANES})
        self.all = [
            running(index, scans=MemoryScansLog(self.broker), direct_io="auto", **settings)
            for _ in range(LANES)
        ]
        self.units = 0

    def __enter__(self) -> Searchers:
        for lane, one in enumerate(self.all):
            one.__enter__()
            one.stage.assigned(frozenset({TopicPartition(GROUPS.name, lane)}))
            one.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.all:
            one.__exit__()

    def offer(self, lane: int, group: Group) -> Running:
        self.all[lane].stage.offer(make_unit(self.units, group), 0)
        self.units += 1
        return self.all[lane]

    def pass_on(self, outputs: list[Output]) -> list[Scan]:
        """Writes the scans among `outputs`, and returns them."""
        scans = [each for each in outputs if each.topic == SCANS.name]
        for each in scans:
            self.broker.append(
                SCANS.name, each.value, headers=each.headers, partition=each.partition
            )
        return [decode(Scan, each.value, each.headers) for each in scans]


@pytest.fixture
def searchers(index: SmallIndex, monkeypatch: pytest.MonkeyPatch) -> Iterator[Searchers]:
    monkeypatch.setattr("searcher.in_hand.QUERIES_IN_HAND_MAX", 4)
    with Searchers(index) as found:
        yield found


def scattered(index: SmallIndex, lane: int, count: int = 8, **changes: Any) -> Group:
    searches = [(each.vector, each.clusters) for each in questions(index, count, 8)]
    return group_of(
        index.manifest,
        searches,
        top_k=TOP_K,
        lane=lane,
        lane_count=LANES,
        is_scattered=True,
        **changes,
    )


def homes(group: Group, lane: int) -> set[str]:
    return {each.query.query_id for each in group.queries if each.clusters[0] % LANES == lane}


def wait_parts(one: Running, count: int) -> None:
    one.sink.wait(lambda: len(one.sink.parts()) >= count, f"{count} parts")


def scans_of(one: Running) -> int:
    return sum(each.topic == SCANS.name for each in one.sink.outputs())


def test_two_searchers_answer_each_query_once(index: SmallIndex, searchers: Searchers) -> None:
    groups = [scattered(index, lane, count=40) for lane in range(LANES)]
    found = {}
    for lane in (1, 0):
        one = searchers.offer(lane, groups[lane])
        one.sink.wait(
            lambda one=one, lane=lane: scans_of(one) == len(homes(groups[lane], 1 - lane)),
            "scans for the other lane",
        )
        searchers.pass_on(one.sink.outputs())
    for lane, one in enumerate(searchers.all):
        wait_parts(one, len(groups[lane].queries))
        retrievals = one.sink.retrievals()
        assert retrievals.keys() == homes(groups[lane], lane)
        found.update(retrievals)
        assert one.count("clusters_not_scanned_elsewhere_total") == 0
    missed = 0
    for number, search in enumerate(questions(index, 40, 8)):
        expected = exact_top_k(index, search.vector, search.clusters, TOP_K)
        retrieval = found[f"q0-{number}"]
        missed += len({f"d{row}" for row in expected} - {hit.doc_id for hit in retrieval.hits})
        assert [probe.cluster for probe in retrieval.probes] == list(search.clusters)
    assert missed <= 1


def test_queries_that_wait_keep_no_other_lane_out(index: SmallIndex, searchers: Searchers) -> None:
    group = scattered(index, 0, count=24)
    assert len(homes(group, 0)) > 4, "more than may be in hand"
    one = searchers.offer(0, group)
    wait_parts(one, 24 - len(homes(group, 0)))
    credit = one.stage.credit()
    assert credit.records > 0 and credit.paused_partitions == {HERE}
    assert credit.idle_parts == {GROUPS.name: len(homes(group, 0))}
    one.stage.drain(0)
    wait_parts(one, 24)
    assert one.sink.retrievals().keys() == homes(group, 0)
    assert one.stage.credit().paused_partitions == frozenset()
    assert one.count("clusters_not_scanned_elsewhere_total") > 0


@pytest.mark.parametrize(
    ("changes", "settings"),
    [({"index_version": "2000-01-01T00:00:00Z-a"}, {}), ({}, {"search_mode": "exact"})],
)
def test_scans_of_an_older_index_or_of_an_exact_searcher_are_refused(
    index: SmallIndex, changes: dict[str, Any], settings: dict[str, Any]
) -> None:
    group = scattered(index, 0, **changes)
    with Searchers(index, **settings) as searchers:
        one = searchers.offer(0, group)
        wait_parts(one, 8)
        scans = searchers.pass_on(one.sink.outputs())
    assert len(scans) == len(homes(group, 1)) and all(not scan.codec for scan in scans)
    assert one.sink.retrievals().keys() == (set() if changes else homes(group, 0))


def test_late_queries_leave_nothing_behind(index: SmallIndex, searchers: Searchers) -> None:
    group = scattered(index, 0, count=24, deadline_us=1)
    one = searchers.offer(0, group)
    wait_parts(one, 24)
    one.stage.check_integrity()
    assert not searchers.pass_on(one.sink.outputs()), "the home of a late query is late, too"
    assert one.sink.answers().keys() == homes(group, 0)

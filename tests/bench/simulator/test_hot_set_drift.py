"""The simulated searcher with a hot shard: threads share cores, and swaps are where they belong."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from bench.data.evaluation import EvaluationData
from bench.simulator.gpu_costs import H100
from bench.simulator.hot_set_drift import DriftRow, HotSetDriftOptions, promises_of, run
from bench.simulator.hot_set_rules import HedraRagHotSet, StaticHotSet, hottest
from bench.simulator.shard_searcher import SearcherCosts, ShardSearcher
from bench.simulator.virtual_threads import Phase, VirtualThreads
from schemas.record import ClusterId
from searcher.plan.hot_swaps import SUBSTAGES_MIN, Swaps
from tests.bench.retrieval.conftest import DIMENSION, tiny_index, unit_rows

__all__ = ["tiny_index"]

COSTS = SearcherCosts(
    call_us=10,
    query_us=100,
    pair_us=5,
    row_us=1,
    read_row_us=2,
    load_row_us=3,
    threads=2,
    cores=2,
)


class SwapOnce(StaticHotSet):
    """After the first sub-stage, cluster 0 leaves and 2 enters."""

    def __init__(self) -> None:
        self.substages = 0
        self.changes: list[tuple[str, int]] = []

    def substage(self) -> Swaps | None:
        self.substages += 1
        return Swaps((ClusterId(0),), (ClusterId(2),)) if self.substages == 1 else None

    def loaded(self, cluster: ClusterId) -> None:
        self.changes.append(("loaded", cluster))

    def left(self, cluster: ClusterId) -> None:
        self.changes.append(("left", cluster))


def make_searcher(rule: Any, hot: list[int]) -> ShardSearcher:
    return ShardSearcher(
        rule=rule,
        hot=hot,
        row_counts=np.array([10, 20, 30]),
        size_bytes=np.array([1_000, 2_000, 3_000]),
        costs=COSTS,
        gpu=H100,
    )


def test_threads_that_compute_share_the_cores_and_those_that_wait_do_not() -> None:
    time = VirtualThreads(3, 1)
    ended: list[tuple[str, float]] = []
    time.give(0, [Phase(10, True)], lambda: ended.append(("a", time.now_us)))
    time.give(1, [Phase(10, True)], lambda: ended.append(("b", time.now_us)))
    time.give(2, [Phase(5, False), Phase(2, True)], lambda: ended.append(("c", time.now_us)))
    while time.step():
        pass
    # Until 5 two share the core; c then takes 2 with a third of it, until 11; 22 in all.
    assert [(name, pytest.approx(at)) for name, at in ended] == [("c", 11), ("a", 22), ("b", 22)]


def test_a_search_takes_the_longer_of_codes_and_shard() -> None:
    searcher = make_searcher(StaticHotSet(), [0])
    took = searcher.search([(ClusterId(1),), (ClusterId(0),)], {})
    codes_us = 10 + 100 + 5 + 20
    gpu_us = H100.launch_us + H100.scan_us(1_000, 1_000)
    assert took.search_us == pytest.approx([codes_us, gpu_us])
    assert took.held == {0} and not took.is_swapping


def test_a_cluster_that_enters_is_found_when_it_is_loaded() -> None:
    rule = SwapOnce()
    searcher = make_searcher(rule, [0])
    first = searcher.search([(ClusterId(0),)], {})
    assert first.is_swapping and rule.changes == [("left", 0)]
    held = []
    for _ in range(5):
        held.append(searcher.search([(ClusterId(1),)], {}).held)
    assert held[0] == frozenset() and held[-1] == {2}
    assert rule.changes == [("left", 0), ("loaded", 2)]
    assert (searcher.left_bytes, searcher.entered_bytes) == (1_000, 3_000)


def test_loads_slow_searches_where_all_cores_are_busy() -> None:
    window = [(ClusterId(1),)] * 64
    alone = make_searcher(StaticHotSet(), [0]).search(window, {})
    searcher = make_searcher(SwapOnce(), [0])
    searcher.search([(ClusterId(0),)], {})
    beside = searcher.search(window, {})
    assert beside.is_swapping
    # 30 rows are converted in 90 us of a core, while two threads scan codes on two cores.
    assert max(alone.search_us) < max(beside.search_us) <= max(alone.search_us) + 90


def test_a_scan_goes_over_all_or_gathers_what_is_asked_for() -> None:
    assert H100.scan_us(1_000, 2_000) == H100.scan_us(2_000, 2_000)
    assert H100.scan_us(1_000, 9_000) < H100.scan_us(2_000, 9_000)
    assert H100.copy_us(5_000_000) == pytest.approx(H100.copy_fixed_us + 100)


def test_hedrarag_takes_the_most_frequent_clusters_after_50_substages() -> None:
    rule = HedraRagHotSet(np.ones(4, np.int64), 2, [0, 1], np.zeros(4), forgets=False)
    rule.add_window([(ClusterId(2), ClusterId(3)), (ClusterId(3), ClusterId(1))], {})
    parts = [rule.substage() for _ in range(SUBSTAGES_MIN)]
    assert parts == [None] * (SUBSTAGES_MIN - 1) + [Swaps((ClusterId(0),), (ClusterId(3),))]
    assert hottest(np.array([1.0, 0, 3, 2]), np.ones(4, np.int64), 9).tolist() == [2, 3, 0]


def test_promises_are_about_carpool_and_can_be_broken() -> None:
    fine = DriftRow(
        rule="carpool",
        share=0.1,
        window=20,
        windows_after=30,
        windows_until_near=[20],
        hit_rate_before=[0.4],
        hit_rate_after=[0.3],
        hit_rate_oracle=[0.3],
        p99_before_us=[100],
        p99_after_us=[100],
        p99_swapping_us=[120],
        p99_still_us=[100],
        entered_share=[0.5],
        false_left_share=[0.0],
    )
    still = msgspec.structs.replace(fine, rule="static", windows_until_near=[None])
    assert all(promises_of([still, fine]).values())
    bad: dict[str, list[Any]] = {
        "windows_until_near": [None],
        "p99_swapping_us": [121],
        "false_left_share": [0.1],
    }
    for number, (field, value) in enumerate(bad.items()):
        row = msgspec.structs.replace(fine, **{field: value})
        assert [*promises_of([still, row]).values()] == [at != number for at in range(3)]
        other = msgspec.structs.replace(row, rule="static")
        assert all(promises_of([still, other]).values())


def test_a_run_over_a_tiny_index_reports_every_rule(tiny_index: Path, tmp_path: Path) -> None:
    (tmp_path / "embeddings").mkdir()
    for seed, name in enumerate(("queries-hotpotqa", "queries-nq")):
        vectors = unit_rows(np.random.default_rng(seed), 100, DIMENSION)
        np.save(tmp_path / "embeddings" / f"{name}.npy", vectors)
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as lines:
            lines.write("".join(f'{{"id": "{row}", "text": "q"}}\n' for row in range(100)))
    options = HotSetDriftOptions(nprobe=3, shares=(0.5,), windows=(10,), ahead=2, orders=2)
    run(tiny_index, EvaluationData(folder=tmp_path), options, tmp_path / "report.json")
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert len({row["rule"] for row in report["results"]}) == len(report["results"]) == 5
    static = report["results"][0]
    assert static["rule"] == "static" and static["entered_share"] == [0, 0]
    for row in report["results"]:
        assert all(0 < rate <= 1 for rate in row["hit_rate_oracle"])
        assert len(row["windows_until_near"]) == 2 and row["windows_after"] == 5

"""What the grouping benchmark replays, against traces small enough to count by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.micro.grouping import GroupingOptions, measure, run
from bench.micro.grouping_replay import ordered_windows, replay
from grouper.plan.grouping import grouping_policy
from grouper.plan.order import group_order

WHOLE = grouping_policy("per_window", jaccard_similarity_min=0.5)
NONE = grouping_policy("per_query", jaccard_similarity_min=0.5)
ARRIVAL, OVERLAP = group_order("arrival"), group_order("nearest_chain")
SIZES = np.array([1, 10, 100, 1_000, 10_000], dtype=np.int64) * 1_000_000
OPTIONS = GroupingOptions(
    nlist=8,
    nprobe=2,
    window_queries=5,
    windows=3,
    seed=0,
)


def test_windows_are_ordered_with_the_end_of_the_one_before_in_mind() -> None:
    windows = [[(0, 1), (3, 4)], [(0, 1), (3, 4)]]
    assert ordered_windows(windows, WHOLE, ARRIVAL) == [[[(0, 1), (3, 4)]], [[(0, 1), (3, 4)]]]
    assert ordered_windows(windows, WHOLE, OVERLAP) == [[[(0, 1), (3, 4)]], [[(3, 4), (0, 1)]]]


def test_query_by_query_every_miss_is_a_read() -> None:
    """(0, 1), (3,), (1,) with room for two: by arrival the last reads cluster 1 again; by overlap
    it finds it.
    """
    windows = [[(0, 1), (3,), (1,)]]
    arrival = replay(windows, NONE, ARRIVAL, name="per_query", sizes_bytes=SIZES, cache_clusters=1)
    overlap = replay(windows, NONE, OVERLAP, name="per_query", sizes_bytes=SIZES, cache_clusters=1)
    assert arrival.by_query_mb == pytest.approx((1 + 10 + 1_000 + 10) / 3)
    assert overlap.by_query_mb == pytest.approx((1 + 10 + 1_000) / 3)
    assert (arrival.records_a_window, overlap.records_a_window) == (3, 3)


def test_record_by_record_each_cluster_is_read_once_and_least_lacking_query_goes_first() -> None:
    """Query (1, 3) lacks 1,010, (0, 1) 11, (1,) 10: done after 10, 11 and 1,011."""
    row = replay(
        [[(1, 3), (0, 1), (1,)]],
        WHOLE,
        ARRIVAL,
        name="per_window",
        sizes_bytes=SIZES,
        cache_clusters=5,
    )
    assert row.by_record_mb == pytest.approx(1_011 / 3)
    assert row.completion_mb == pytest.approx((10 + 11 + 1_011) / 3)
    assert row.records_a_window == 1


def test_what_an_earlier_window_left_in_the_cache_is_not_read_again() -> None:
    row = replay(
        [[(0, 1)], [(1, 2)]], WHOLE, ARRIVAL, name="per_window", sizes_bytes=SIZES, cache_clusters=2
    )
    assert row.by_record_mb == row.by_query_mb == pytest.approx((1 + 10 + 100) / 2)
    assert row.completion_mb == pytest.approx((11 + 100) / 2)


def test_every_policy_and_order_is_replayed_and_every_window_is_timed() -> None:
    chooser = np.random.default_rng(0)
    corpus, questions = (chooser.normal(size=(rows, 4)).astype(np.float32) for rows in (400, 23))
    result = measure(corpus, questions, OPTIONS)
    assert (
        result.times_ms.plan.count
        == result.times_ms.plan_cpu.count
        == result.times_ms.probe.count
        == 3
    )
    assert len(result.replayed) == 12
    assert [(row.policy, row.order) for row in result.replayed][:2] == [
        ("per_query", "arrival"),
        ("per_query", "nearest_chain"),
    ]
    whole = {row.order: row for row in result.replayed if row.policy == "per_window"}
    none = {row.order: row for row in result.replayed if row.policy == "per_query"}
    assert all(row.records_a_window == 1 for row in whole.values())
    assert all(row.records_a_window == 5 for row in none.values())
    for order in ("arrival", "nearest_chain"):
        assert whole[order].by_query_mb == none[order].by_query_mb, (
            "the same order of queries, in more records"
        )


@pytest.mark.data
def test_a_run_on_real_questions_leaves_its_figures(tmp_path: Path) -> None:
    path = tmp_path / "grouping.json"
    options = msgspec.structs.replace(OPTIONS, nlist=50, nprobe=5, window_queries=20, windows=5)
    run(Path(os.environ["CARPOOL_DATA"]), options, path)
    report = json.loads(path.read_bytes())
    assert report["settings"]["nlist"] == 50
    assert {file["name"] for file in report["data"]} == {
        "wikipedia-16k.npy",
        "queries-hotpotqa.npy",
        "queries-nq.npy",
    }
    rows = {
        (row["policy"], row["order"]): row["by_query_mb"] for row in report["results"]["replayed"]
    }
    assert (
        rows["per_query", "nearest_chain"]
        < rows["greedy", "arrival"]
        < rows["per_query", "arrival"]
    )

"""Figures out of records, on inputs small enough to add up by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.spread import spread
from bench.services.figures import Trip, cache_use, evidence_share, stage_spreads_ms, windows
from schemas.group import Group, GroupedQuery
from schemas.query import Query
from schemas.record import ClusterId, Source
from schemas.retrieval import Probe, Retrieval

SOURCE = Source(topic="rag.queries.v1", partition=0, offset=0)


def retrieval(
    tiers: str = "", bytes_read: int = 0, completed_us: int = 0, **timings_us: int
) -> Retrieval:
    kinds = {"r": "ram", "s": "ssd", "g": "gpu"}
    return Retrieval(
        query=Query(query_id="q", text="?"),
        source=SOURCE,
        revision=1,
        is_final=True,
        index_version="v",
        embedding_model="m",
        hits=(),
        skipped_clusters=(),
        probes=tuple(Probe(cluster=ClusterId(n), tier=kinds[tier]) for n, tier in enumerate(tiers)),  # type: ignore[arg-type]
        bytes_read=bytes_read,
        timings_us=timings_us,
        completed_us=completed_us,
    )


def group(grouper: str, window_id: int, queries: int) -> Group:
    return Group(
        index_version="v",
        centroids_fingerprint="c",
        embedding_model="m",
        grouper=grouper,
        window_id=window_id,
        lane=0,
        lane_count=1,
        sequence=0,
        groups_in_window_for_lane=1,
        queries=tuple(
            GroupedQuery(
                query=Query(query_id=f"q-{n}", text="?"),
                source=SOURCE,
                arrival_us=0,
                vector=b"\0" * 4,
                clusters=(ClusterId(0),),
            )
            for n in range(queries)
        ),
        clusters=(ClusterId(0),),
    )


def test_percentiles_interpolate_between_neighbours_over_all_values() -> None:
    found = spread(range(101))
    assert found is not None
    assert (found.count, found.mean, found.p50, found.p99, found.max) == (
        101,
        50.0,
        50.0,
        99.0,
        100.0,
    )
    two = spread([10.0, 20.0])
    assert two is not None
    assert (two.p50, two.p99) == (15.0, pytest.approx(19.9))


def test_a_spread_of_nothing_is_none() -> None:
    assert spread([]) is None
    assert windows([]) is None


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=200))
def test_a_percentile_is_what_sorting_by_hand_gives(values: list[float]) -> None:
    found = spread(values)
    assert found is not None
    ordered = sorted(values)
    place = 0.99 * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    by_hand = ordered[below] + (ordered[above] - ordered[below]) * (place - below)
    assert found.p99 == pytest.approx(by_hand, rel=1e-9, abs=1e-9)
    assert found.max == ordered[-1]


def test_a_trip_counts_from_the_intended_time_until_the_retrieval_is_read() -> None:
    trip = Trip(
        intended_us=1_000,
        sent_us=1_300,
        arrived_us=9_000,
        retrieval=retrieval(completed_us=8_000, search=500, load=200),
    )
    assert trip.stages_us() == {
        "search": 500,
        "load": 200,
        "send_delay": 300,
        "return": 1_000,
        "total": 8_000,
    }


def test_stages_come_in_the_order_of_the_way_and_unknown_ones_last() -> None:
    found = stage_spreads_ms([{"total": 4_000, "rerank": 1_000, "load": 2_000}, {"total": 6_000}])
    assert list(found) == ["load", "total", "rerank"]
    assert (found["total"].count, found["total"].p50, found["total"].max) == (2, 5.0, 6.0)
    assert found["load"].count == 1


def test_cache_use_adds_up_tiers_and_bytes() -> None:
    use = cache_use([retrieval("rrs", 100), retrieval("rss", 200), retrieval("")])
    assert (use.gpu, use.ram, use.ssd, use.bytes_read, use.requests) == (0, 3, 3, 300, 6)
    assert use.hit_share == 0.5
    assert cache_use([]).hit_share == 0.0


def test_windows_are_told_apart_by_process_and_number_and_cut_groups_belong_to_one() -> None:
    found = windows([group("a", 1, 2), group("a", 1, 3), group("a", 2, 1), group("b", 1, 4)])
    assert found is not None
    assert (found.windows, found.groups) == (3, 4)
    assert (found.window_queries.max, found.window_queries.p50, found.group_queries.mean) == (
        5.0,
        4.0,
        2.5,
    )


def test_evidence_counts_among_the_first_hits_only_and_what_found_nothing_is_missed() -> None:
    found = {"a": ["1", "2", "3"], "b": ["9", "4"], "other": ["5"]}
    evidence = {
        "a": frozenset({"3", "7"}),
        "b": frozenset({"4"}),
        "c": frozenset({"6"}),
        "d": frozenset({"8"}),
    }
    assert evidence_share(found, evidence, first=2) == 0.25
    assert evidence_share(found, evidence, first=3) == 0.5
    with pytest.raises(ValueError, match="no query has evidence"):
        evidence_share(found, {})


def test_percentiles_do_not_average_averages() -> None:
    # Nine fast ones and a slow one in one run: the mean of two halves' p99 would say otherwise.
    values = [1.0] * 99 + [1_000.0]
    found = spread(values)
    assert found is not None
    assert found.p99 == pytest.approx(float(np.percentile(values, 99)))

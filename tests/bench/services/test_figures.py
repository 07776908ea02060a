"""Figures of claims and traffic from records, on inputs small enough to add up by hand."""

from __future__ import annotations

import msgspec
import pytest

from bench.core.accounting import account
from bench.core.memory import MemoryPeaks, MemoryUse
from bench.core.spread import spread
from bench.services.claims import evidence_share
from bench.services.figures import CacheUse, Trip, cache_use, stage_spreads_ms
from bench.services.traffic import (
    MIB,
    Counters,
    Footprint,
    TrafficResult,
    agrees,
    retrieved_per_s,
    traffic_promises,
)
from schemas.record import ClusterId
from schemas.retrieval import Probe, Retrieval
from tests.bench.helpers import LOAD
from tests.records import a_retrieval


def probed(tiers: str, bytes_read: int = 0) -> Retrieval:
    kinds = {"r": "ram", "s": "ssd", "g": "gpu"}
    probes = tuple(
        Probe(cluster=ClusterId(number), tier=kinds[tier])  # type: ignore[arg-type]
        for number, tier in enumerate(tiers)
    )
    return a_retrieval(probes=probes, bytes_read=bytes_read)


def test_a_trip_counts_from_the_intended_time_and_unknown_stages_are_last() -> None:
    retrieval = a_retrieval(completed_us=8_000, timings_us={"rerank": 500, "load": 200})
    trip = Trip(intended_us=1_000, sent_us=1_300, received_us=9_000, retrieval=retrieval)
    found = stage_spreads_ms([trip.stages_us(), {"total": 6_000}])
    assert {stage: each.max for stage, each in found.items()} == {
        "send_delay": 0.3,
        "load": 0.2,
        "return": 1.0,
        "total": 8.0,
        "rerank": 0.5,
    }
    assert list(found) == ["send_delay", "load", "return", "total", "rerank"]
    assert (found["total"].count, found["total"].p50, found["load"].count) == (2, 7.0, 1)


def test_cache_use_adds_up_tiers_and_bytes() -> None:
    use = cache_use([probed("rrs", 100), probed("rss", 200), probed("")])
    assert (use.gpu, use.ram, use.ssd, use.bytes_read, use.requests) == (0, 3, 3, 300, 6)
    assert use.hit_share == 0.5
    assert cache_use([]).hit_share == 0.0


def test_evidence_counts_among_the_first_hits_only_and_a_claim_without_hits_is_missed() -> None:
    found = {"a": ["1", "2", "3"], "b": ["9", "4"], "other": ["5"]}
    pages = {"a": "37", "b": "4", "c": "6", "d": "8"}
    evidence = {claim: frozenset(ids) for claim, ids in pages.items()}
    assert evidence_share(found, evidence, first=2) == 0.25
    assert evidence_share(found, evidence, first=3) == 0.5
    with pytest.raises(ValueError, match="no claim has evidence"):
        evidence_share(found, {})


def counters(**counts: int) -> Counters:
    return Counters(**{name: counts.get(name, 0) for name in Counters.__struct_fields__})


def test_records_and_metrics_agree_on_tiers_and_on_bytes_read_on_demand() -> None:
    use = CacheUse(gpu=0, ram=3, ssd=2, bytes_read=8_192)
    assert agrees(use, counters(ram=3, ssd=2, demand_bytes=8_192, prefetch_bytes=4_096))
    assert not agrees(use, counters(ram=3, ssd=2, demand_bytes=4_096))
    assert not agrees(use, counters(ram=2, ssd=3, demand_bytes=8_192))
    assert counters(ram=5, ssd=4).since(counters(ram=2, ssd=4)) == counters(ram=3)


def test_a_rate_counts_from_the_first_question_to_the_last_retrieval() -> None:
    times_us = ((1_000_000, 1_500_000), (1_200_000, 3_000_000), (1_400_000, 2_000_000))
    trips = [
        Trip(intended_us=at_us, sent_us=at_us, received_us=back_us, retrieval=a_retrieval())
        for at_us, back_us in times_us
    ]
    assert retrieved_per_s(trips) == 1.5
    assert retrieved_per_s([]) == 0.0


def traffic_result(searcher_bytes: int, grouper_bytes: int) -> TrafficResult:
    one = spread([1.0])
    assert one is not None
    return TrafficResult(
        kind="text",
        load=LOAD,
        retrieved_per_s=1,
        retrievals=account("a", "a"),
        stages_ms={"total": one},
        cache=CacheUse(gpu=0, ram=0, ssd=0, bytes_read=0),
        cache_hit_share=0,
        counters=counters(),
        records_agree_with_metrics=True,
        bytes_a_query=0,
        memory={
            "searcher": MemoryPeaks(
                anonymous_bytes_max=searcher_bytes, resident_bytes_max=0, samples=1
            ),
            "grouper": MemoryPeaks(
                anonymous_bytes_max=0, resident_bytes_max=grouper_bytes, samples=1
            ),
        },
    )


def test_memory_is_promised_against_budget_and_footprint() -> None:
    footprint = Footprint(
        at_rest=MemoryUse(anonymous_bytes=0, resident_bytes=0),
        in_use=MemoryPeaks(anonymous_bytes_max=101 * MIB, resident_bytes_max=0, samples=1),
        beside_budget_bytes=100 * MIB,
    )

    def broken(searcher_bytes: int, grouper_bytes: int, found: Footprint = footprint) -> set[str]:
        results = [traffic_result(searcher_bytes, grouper_bytes)]
        promises = traffic_promises(results, found, 10 * MIB)
        return {promise for promise, is_kept in promises.items() if not is_kept}

    assert broken(110 * MIB, 800 * MIB) == set()
    assert broken(110 * MIB + 1, 0) == {"text: searcher within budget and footprint"}
    assert broken(0, 900 * MIB) == {"text: grouper under 900 MB"}
    large = msgspec.structs.replace(footprint, beside_budget_bytes=151 * MIB)
    assert broken(0, 0, large) == {"searcher's footprint at most 150 MB"}

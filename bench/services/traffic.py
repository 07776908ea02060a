"""`carpool bench traffic`: what do grouper and searcher do with a stream of questions: times,
cache, bytes, memory?

An open load: a question is due at its time whether or not earlier ones are back, and its time
counts from then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

import msgspec

from bench.core.accounting import Books
from bench.core.memory import MemoryPeaks, MemoryUse, MemoryWatch, memory_of
from bench.core.session import Asked, Session, open_session
from bench.core.spread import Spread
from bench.core.stack import ServiceProcess
from bench.data.index import BenchIndex
from bench.services.figures import CacheUse, Trip, Windows, cache_use, stage_spreads_ms, windows
from bench.services.results import answers_of, final_retrievals, groups_of, retrieval_books
from producers.read_questions import Question
from producers.send_load import LoadPlan, LoadSummary
from schemas.topics import ANSWERS, GROUPS, RETRIEVALS

SERVICES = ("grouper", "searcher")
SETTLE_S = 2.0
STALLED_S = 60.0
FOOTPRINT_BYTES_MAX = 150 * 1024 * 1024
GROUPER_BYTES_MAX = 900 * 1024 * 1024

Kind = Literal["text", "vectors"]
Arrivals = Literal["even", "poisson"]
Tell = Callable[[str, int, int], None]


class TrafficRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `warm_up` questions go first and are not measured: a model's first batch is slow."""

    kind: Kind
    bootstrap: str | None
    work_dir: Path
    plan: LoadPlan
    rate_per_s: float
    arrivals: Arrivals
    seed: int
    warm_up: int
    settings: dict[str, str]


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """What the searcher's metrics counted. Demand: because a query lacked a cluster; prefetch: read
    ahead for the next group.
    """

    ram: int
    ssd: int
    demand_bytes: int
    prefetch_bytes: int
    prefetches_used: int
    prefetches_late: int
    prefetches_wasted: int
    evictions: int

    def since(self, before: Counters) -> Counters:
        """Returns the difference to an earlier reading."""
        return Counters(
            **{name: getattr(self, name) - getattr(before, name) for name in self.__struct_fields__}
        )


class TrafficResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one run. Times in ms; percentiles over all its queries. Bytes a query include
    what was read ahead.

    `retrieved_per_s` under the offered rate: the services fell behind, and their queue is most of
    the total.
    """

    kind: Kind
    load: LoadSummary
    retrieved_per_s: float
    retrievals: Books
    stages_ms: dict[str, Spread]
    windows: Windows | None
    cache: CacheUse
    cache_hit_share: float
    counters: Counters
    records_agree_with_metrics: bool
    demand_bytes_a_query: float
    bytes_a_query: float
    memory: dict[str, MemoryPeaks]


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """The searcher on an index with a few passages a cluster: at rest, and with the same traffic as
    a backlog.

    `beside_budget_bytes`: its anonymous memory in use at most, less all the bytes of these
    clusters.
    """

    at_rest: MemoryUse
    in_use: MemoryPeaks
    cluster_bytes: int
    beside_budget_bytes: int
    questions: int


def run_traffic(
    request: TrafficRequest, index: BenchIndex, questions: Sequence[Question], tell: Tell
) -> TrafficResult:
    """Runs one load and returns what came of it. Blocks. Raises `CarpoolError` when the run itself
    broke.
    """
    with _session(request, index) as session:
        searcher = session.stack["searcher"]
        with MemoryWatch({name: session.stack[name].pid for name in SERVICES}) as watch:
            _warm_up(session, request, questions)
            before = read_counters(searcher)
            asked = _ask(session, request, questions, tell)
            session.wait_quiet(*SERVICES)
            counters = read_counters(searcher).since(before)
        ids = asked.sent.keys()
        records = session.reader.records(RETRIEVALS.name)
        answers = answers_of(session.reader.records(ANSWERS.name), ids)
        groups = groups_of(session.reader.records(GROUPS.name), ids)
    found = final_retrievals(records, ids)
    trips = [
        Trip(
            intended_us=asked.sent[query_id].intended_us,
            sent_us=asked.sent[query_id].sent_us,
            arrived_us=arrived_us,
            retrieval=retrieval,
        )
        for query_id, (retrieval, arrived_us) in found.items()
    ]
    cache = cache_use(retrieval for retrieval, _ in found.values())
    return TrafficResult(
        kind=request.kind,
        load=asked.summary,
        retrieved_per_s=retrieved_per_s(trips),
        retrievals=retrieval_books(ids, records, answers),
        stages_ms=stage_spreads_ms(trip.stages_us() for trip in trips),
        windows=windows(groups),
        cache=cache,
        cache_hit_share=cache.hit_share,
        counters=counters,
        records_agree_with_metrics=agrees(cache, counters),
        demand_bytes_a_query=cache.bytes_read / max(1, len(found)),
        bytes_a_query=(counters.demand_bytes + counters.prefetch_bytes) / max(1, len(found)),
        memory=watch.peaks(),
    )


def measure_footprint(
    request: TrafficRequest, tiny: BenchIndex, questions: Sequence[Question], tell: Tell
) -> Footprint:
    """Returns what the searcher takes with next to nothing to hold, at rest and with `questions`.
    Blocks.

    It is started when all the groups are waiting for it, so that what it fetches ahead of its work
    counts.
    """
    with _session(request, tiny) as session:
        searcher = session.stack["searcher"]
        at_rest = memory_of(searcher.pid)
        searcher.stop()
        sent, _ = session.send(
            questions,
            request.plan,
            rate_per_s=request.rate_per_s,
            arrivals=request.arrivals,
            seed=request.seed,
            on_sent=lambda done: tell("footprint: sent", done, len(questions)),
        )
        session.wait_quiet("grouper")
        searcher.start()
        with MemoryWatch({"searcher": searcher.pid}, interval_s=0.05) as watch:
            searcher.wait_ready()
            session.reader.wait(
                sent.keys(),
                (RETRIEVALS.name, ANSWERS.name),
                stalled_s=STALLED_S,
                settle_s=0.0,
                on_progress=lambda done: tell("footprint: back", done, len(questions)),
            )
    in_use = watch.peaks()["searcher"]
    return Footprint(
        at_rest=at_rest,
        in_use=in_use,
        cluster_bytes=tiny.segment_bytes,
        beside_budget_bytes=in_use.anonymous_bytes_max - tiny.segment_bytes,
        questions=len(questions),
    )


def _session(request: TrafficRequest, index: BenchIndex) -> AbstractContextManager[Session]:
    return open_session(
        bootstrap=request.bootstrap,
        index_dir=index.dir,
        work_dir=request.work_dir,
        services=SERVICES,
        settings=request.settings,
    )


def _warm_up(session: Session, request: TrafficRequest, questions: Sequence[Question]) -> None:
    if request.warm_up:
        session.ask(
            questions[: request.warm_up],
            request.plan,
            rate_per_s=request.rate_per_s,
            stalled_s=STALLED_S,
        )
        session.wait_quiet(*SERVICES)


def _ask(
    session: Session, request: TrafficRequest, questions: Sequence[Question], tell: Tell
) -> Asked:
    return session.ask(
        questions,
        request.plan,
        rate_per_s=request.rate_per_s,
        arrivals=request.arrivals,
        seed=request.seed,
        stalled_s=STALLED_S,
        settle_s=SETTLE_S,
        on_sent=lambda done: tell(f"{request.kind}: sent", done, len(questions)),
        on_seen=lambda done: tell(f"{request.kind}: back", done, len(questions)),
    )


def read_counters(searcher: ServiceProcess) -> Counters:
    """Returns what the searcher's /metrics counts now."""

    def read(name: str, **labels: str) -> int:
        return int(searcher.metric(f"carpool_{name}", **labels))

    return Counters(
        ram=read("cluster_requests_total", tier="ram"),
        ssd=read("cluster_requests_total", tier="ssd"),
        demand_bytes=read("bytes_read_total", purpose="demand"),
        prefetch_bytes=read("bytes_read_total", purpose="prefetch"),
        prefetches_used=read("prefetches_total", result="used"),
        prefetches_late=read("prefetches_total", result="late"),
        prefetches_wasted=read("prefetches_total", result="wasted"),
        evictions=read("evictions_total"),
    )


def retrieved_per_s(trips: Sequence[Trip]) -> float:
    """Returns retrievals a second from the first question's time until the last retrieval was read;
    0 without any.
    """
    if not trips:
        return 0.0
    took_us = max(trip.arrived_us for trip in trips) - min(trip.intended_us for trip in trips)
    return len(trips) * 1_000_000 / max(1, took_us)


def agrees(cache: CacheUse, counters: Counters) -> bool:
    """Whether records and metrics say the same: clusters by tier, and bytes read because a query
    lacked them.
    """
    return (cache.ram, cache.ssd, cache.bytes_read) == (
        counters.ram,
        counters.ssd,
        counters.demand_bytes,
    )


def traffic_promises(
    results: Sequence[TrafficResult], footprint: Footprint | None, budget_bytes: int
) -> dict[str, bool]:
    """Returns what was promised of the runs, and whether it held."""
    promises: dict[str, bool] = {}
    for result in results:
        promises[f"{result.kind}: each question has one retrieval"] = result.retrievals.holds
        promises[f"{result.kind}: records and metrics agree on cache and bytes"] = (
            result.records_agree_with_metrics
        )
        promises[f"{result.kind}: grouper under 900 MB"] = (
            result.memory["grouper"].resident_bytes_max < GROUPER_BYTES_MAX
        )
        if footprint is not None:
            allowed_bytes = budget_bytes + footprint.beside_budget_bytes
            promises[f"{result.kind}: searcher within budget and footprint"] = (
                result.memory["searcher"].anonymous_bytes_max <= allowed_bytes
            )
    if footprint is not None:
        promises["searcher's footprint at most 150 MB"] = (
            footprint.beside_budget_bytes <= FOOTPRINT_BYTES_MAX
        )
    return promises

"""`carpool bench traffic`: times, cache, bytes and memory under a stream of questions.

The load is open: a question is sent at its time, and its time counts from when it was due.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from bench.core.accounting import Accounting
from bench.core.memory import MemoryPeaks, MemoryUse, MemoryWatch, memory_of
from bench.core.progress import Tell, progress_bars
from bench.core.session import STALLED_S, SentLoad, Session
from bench.core.spread import Spread
from bench.core.stack import ServiceProcess
from bench.data.evaluation import TRAFFIC
from bench.data.index import tiny_index
from bench.services.corpus import CorpusRun, Kind, open_run
from bench.services.figures import (
    CacheUse,
    Trip,
    cache_use,
    stage_spreads_ms,
)
from bench.services.options import TrafficOptions
from bench.services.results import (
    answers_of,
    final_retrievals,
    retrieval_accounting,
)
from carpool.errors import ConfigError
from carpool.settings import environment_name
from producers.send_load import LoadSummary
from schemas.topics import ANSWERS, RETRIEVALS
from searcher.passages.open import PASSAGE_BUFFERS_BYTES

SERVICES = ("grouper", "searcher")
SETTLE_S = 2.0
WARM_UP = 20
"""Questions that are sent first and not measured: a model's first batch is slow."""

FOOTPRINT_RATE_PER_S = 200.0
MIB = 1024 * 1024
FOOTPRINT_BYTES_MAX = 150 * MIB
GROUPER_BYTES_MAX = 900 * MIB


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of the searcher. Demand: read because a query lacked a cluster; else read ahead."""

    ram: int
    ssd: int
    demand_bytes: int
    prefetch_bytes: int
    audited_ids: int

    def since(self, before: Counters) -> Counters:
        """Returns the difference to an earlier reading."""
        return Counters(
            **{name: getattr(self, name) - getattr(before, name) for name in self.__struct_fields__}
        )


class TrafficResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one load. Times in ms over all its queries; bytes include those read ahead.

    Where `retrieved_per_s` is below the offered rate, most of the total is time in a queue.
    """

    kind: Kind
    load: LoadSummary
    retrieved_per_s: float
    retrievals: Accounting
    stages_ms: dict[str, Spread]
    cache: CacheUse
    cache_hit_share: float
    counters: Counters
    records_agree_with_metrics: bool
    bytes_a_query: float
    memory: dict[str, MemoryPeaks]


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """The searcher's memory on an index of a few passages, at rest and with a backlog.

    `beside_budget_bytes`: the most anonymous memory, less the bytes of all clusters.
    """

    at_rest: MemoryUse
    in_use: MemoryPeaks
    beside_budget_bytes: int


def run(options: TrafficOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Raises `CarpoolError`."""
    run = open_run("traffic", options, may_be_other=True)
    budget_bytes = PASSAGE_BUFFERS_BYTES + int(run.index.segment_bytes * options.budget_share)
    budget_name = environment_name("searcher", "budget_bytes")
    if budget_name in run.settings:
        raise ConfigError("set the searcher's budget with --budget-share, not with --set")
    run.settings[budget_name] = str(budget_bytes)
    rates: dict[Kind, float] = {
        "text": options.text_rate_per_s,
        "vectors": options.vector_rate_per_s,
    }
    footprint = None
    with progress_bars() as tell:
        results = [measure(run, kind, rate, tell) for kind, rate in rates.items() if rate > 0]
        if options.footprint:
            rate = options.vector_rate_per_s or FOOTPRINT_RATE_PER_S
            footprint = measure_footprint(run, rate, tell)
    return run.finish(
        lambda console: print_traffic(console, results, footprint),
        promises=traffic_promises(results, footprint, budget_bytes),
        results={"budget_bytes": budget_bytes, "runs": results, "footprint": footprint},
        **run.facts(run.data.questions_path(TRAFFIC), run.data.vectors_path(TRAFFIC)),
    )


def measure(run: CorpusRun, kind: Kind, rate_per_s: float, tell: Tell) -> TrafficResult:
    """Runs one load. Blocks. Raises `CarpoolError` when the run itself failed."""
    questions = run.questions(TRAFFIC, kind)
    with run.session(SERVICES, run.index, run.folder / kind) as session:
        searcher = session.stack["searcher"]
        with MemoryWatch({name: session.stack[name].pid for name in SERVICES}) as watch:
            session.ask(questions[:WARM_UP], run.plan, rate_per_s=rate_per_s)
            session.wait_quiet(*SERVICES)
            before = read_counters(searcher)
            load = session.ask(
                questions,
                run.plan,
                rate_per_s=rate_per_s,
                arrivals="poisson",
                seed=run.options.seed,
                settle_s=SETTLE_S,
                on_sent=lambda done: tell(f"{kind}: sent", done, len(questions)),
                on_seen=lambda done: tell(f"{kind}: back", done, len(questions)),
            )
            session.wait_quiet(*SERVICES)
            counters = read_counters(searcher).since(before)
        return _result(session, kind, load, counters, watch.peaks())


def _result(
    session: Session,
    kind: Kind,
    load: SentLoad,
    counters: Counters,
    memory: dict[str, MemoryPeaks],
) -> TrafficResult:
    ids, recorder = load.sent.keys(), session.recorder
    records = recorder.records(RETRIEVALS.name)
    found = final_retrievals(records, ids)
    trips = [
        Trip(
            intended_us=load.sent[query_id].intended_us,
            sent_us=load.sent[query_id].sent_us,
            received_us=received_us,
            retrieval=retrieval,
        )
        for query_id, (retrieval, received_us) in found.items()
    ]
    cache = cache_use(retrieval for retrieval, _ in found.values())
    return TrafficResult(
        kind=kind,
        load=load.summary,
        retrieved_per_s=retrieved_per_s(trips),
        retrievals=retrieval_accounting(
            ids, records, answers_of(recorder.records(ANSWERS.name), ids)
        ),
        stages_ms=stage_spreads_ms(trip.stages_us() for trip in trips),
        cache=cache,
        cache_hit_share=cache.hit_share,
        counters=counters,
        records_agree_with_metrics=agrees(cache, counters),
        bytes_a_query=(counters.demand_bytes + counters.prefetch_bytes) / max(1, len(found)),
        memory=memory,
    )


def measure_footprint(run: CorpusRun, rate_per_s: float, tell: Tell) -> Footprint:
    """Returns the searcher's memory with almost nothing to keep. Blocks.

    The searcher starts when all groups wait for it, so that what it fetches ahead counts.
    """
    questions = run.questions(TRAFFIC, "vectors")
    tiny = tiny_index(
        run.data, work_dir=run.folder, nlist=run.options.nlist, embedding=run.embedding
    )
    with run.session(SERVICES, tiny, run.folder / "vectors") as session:
        searcher = session.stack["searcher"]
        at_rest = memory_of(searcher.pid)
        searcher.stop()
        load = session.send(
            questions,
            run.plan,
            rate_per_s=rate_per_s,
            on_sent=lambda done: tell("footprint: sent", done, len(questions)),
        )
        session.wait_quiet("grouper")
        searcher.start()
        with MemoryWatch({"searcher": searcher.pid}, interval_s=0.05) as watch:
            searcher.wait_ready()
            session.recorder.wait(
                load.sent.keys(),
                (RETRIEVALS.name, ANSWERS.name),
                stalled_s=STALLED_S,
                settle_s=0.0,
                on_progress=lambda done: tell("footprint: back", done, len(questions)),
            )
    in_use = watch.peaks()["searcher"]
    return Footprint(
        at_rest=at_rest,
        in_use=in_use,
        beside_budget_bytes=in_use.anonymous_bytes_max - tiny.segment_bytes,
    )


def read_counters(searcher: ServiceProcess) -> Counters:
    """Returns the counters of the searcher's /metrics."""

    def read(name: str, **labels: str) -> int:
        return int(searcher.metric(f"carpool_{name}", **labels))

    return Counters(
        ram=read("cluster_requests_total", tier="ram"),
        ssd=read("cluster_requests_total", tier="ssd"),
        demand_bytes=read("bytes_read_total", purpose="demand"),
        prefetch_bytes=read("bytes_read_total", purpose="prefetch"),
        audited_ids=read("audited_ids_total"),
    )


def retrieved_per_s(trips: Sequence[Trip]) -> float:
    """Returns retrievals a second, from the first question's time to the last retrieval."""
    if not trips:
        return 0.0
    took_us = max(trip.received_us for trip in trips) - min(trip.intended_us for trip in trips)
    return len(trips) * 1_000_000 / max(1, took_us)


def agrees(cache: CacheUse, counters: Counters) -> bool:
    """Whether records and metrics agree on clusters by tier and on bytes read on demand.

    Metrics count more where queries were searched exactly too, to audit the others.
    """
    records = (cache.ram, cache.ssd, cache.bytes_read)
    metrics = (counters.ram, counters.ssd, counters.demand_bytes)
    if counters.audited_ids:
        return all(more >= fewer for more, fewer in zip(metrics, records, strict=True))
    return records == metrics


def traffic_promises(
    results: Sequence[TrafficResult], footprint: Footprint | None, budget_bytes: int
) -> dict[str, bool]:
    """Returns each promise and whether it was kept."""
    promises: dict[str, bool] = {}
    for result in results:
        kind, memory = result.kind, result.memory
        promises[f"{kind}: each question has one retrieval"] = result.retrievals.holds
        promises[f"{kind}: records and metrics agree on cache and bytes"] = (
            result.records_agree_with_metrics
        )
        promises[f"{kind}: grouper under 900 MB"] = (
            memory["grouper"].resident_bytes_max < GROUPER_BYTES_MAX
        )
        if footprint is not None:
            promises[f"{kind}: searcher within budget and footprint"] = (
                memory["searcher"].anonymous_bytes_max
                <= budget_bytes + footprint.beside_budget_bytes
            )
    if footprint is not None:
        promises["searcher's footprint at most 150 MB"] = (
            footprint.beside_budget_bytes <= FOOTPRINT_BYTES_MAX
        )
    return promises


def print_traffic(
    console: Console, results: Sequence[TrafficResult], footprint: Footprint | None
) -> None:
    """Prints the tables of the results, one column each."""
    kinds = [result.kind for result in results]
    times = Table("p50 / p99, ms", *kinds, title="Times of every stage")
    for stage in dict.fromkeys(stage for result in results for stage in result.stages_ms):
        cells = [_cell(result.stages_ms.get(stage)) for result in results]
        times.add_row(stage, *cells, style="bold" if stage == "total" else "")
    console.print(times)
    facts = Table("", *kinds, title="Cache, bytes, memory")
    columns = [traffic_facts(result) for result in results]
    for name in columns[0] if columns else ():
        facts.add_row(name, *(column[name] for column in columns))
    console.print(facts)
    if footprint is not None:
        console.print(
            f"searcher's footprint: {footprint.at_rest.anonymous_bytes / MIB:.1f} MiB at rest, "
            f"{footprint.beside_budget_bytes / MIB:.1f} MiB at most beside its budget"
        )


def traffic_facts(result: TrafficResult) -> dict[str, str]:
    """Returns the rows of the second table."""
    counters, memory, found = result.counters, result.memory, result.retrievals
    return {
        "retrieved / missing / twice": f"{found.answered} / {found.missing} / {found.duplicates}",
        "offered / retrieved a second": f"{result.load.rate_per_s:.1f} / "
        f"{result.retrieved_per_s:.1f}",
        "clusters found in RAM": f"{result.cache_hit_share:.1%} of {result.cache.requests:,}",
        "bytes read a query": f"{result.bytes_a_query:,.0f}",
        "bytes read ahead": f"{counters.prefetch_bytes:,}",
        "searcher, peak anonymous MiB": f"{memory['searcher'].anonymous_bytes_max / MIB:.1f}",
        "grouper, peak resident MiB": f"{memory['grouper'].resident_bytes_max / MIB:.1f}",
    }


def _cell(found: Spread | None) -> str:
    return "-" if found is None else f"{found.p50:,.1f} / {found.p99:,.1f}"

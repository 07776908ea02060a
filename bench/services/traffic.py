"""`carpool bench traffic`: times, cache, bytes and memory under a stream of questions.

The load is open: a question is sent at its time, and its time counts from when it was due.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from bench.core.accounting import Accounting
from bench.core.memory import MemoryUse, memory_of
from bench.core.progress import Tell, progress_bars
from bench.core.session import SentLoad, Session
from bench.core.spread import Spread, spreads
from bench.core.stack import ServiceProcess
from bench.data.evaluation import TRAFFIC
from bench.services.corpus import CorpusRun, Kind, open_run
from bench.services.options import TrafficOptions
from bench.services.results import answers_of, final_retrievals, retrieval_accounting
from carpool.errors import ConfigError
from carpool.settings import environment_name
from producers.send_load import SentQuestion
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, RETRIEVALS
from searcher.passages.open import PASSAGE_BUFFERS_BYTES

SERVICES = ("grouper", "searcher")
SETTLE_S = 2.0
WARM_UP = 20
"""Questions that are sent first and not measured: a model's first batch is slow."""
MIB = 1024 * 1024
BESIDE_BUDGET_BYTES_MAX = 150 * MIB
GROUPER_BYTES_MAX = 900 * MIB
STAGES = (
    *("send_delay", "kafka_wait", "window_wait", "encode", "group", "queue_search", "load"),
    *("search", "passages", "return", "total"),
)
"""The stages of a query in order.

The benchmark measures `send_delay`, `return` and `total`; the services report the others.
"""


class CacheUse(msgspec.Struct, frozen=True, kw_only=True):
    """Clusters that queries probed, by the tier where they were found, and bytes read for them."""

    ram: int
    ssd: int
    bytes_read: int


class TrafficResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one load. Times in ms over all its queries.

    Where `retrieved_per_s` is below the offered rate, most of the total is time in a queue.
    `records` and `metrics`: cache and bytes as either reports them. `audited_ids`: of queries that
    were searched exactly too. `bytes_a_query`: also those read ahead.
    """

    offered_per_s: float
    retrieved_per_s: float
    accounting: Accounting
    stages_ms: dict[str, Spread]
    hit_share: float
    records: CacheUse
    metrics: CacheUse
    audited_ids: int
    bytes_a_query: float
    memory: dict[str, MemoryUse]

    @property
    def records_agree_with_metrics(self) -> bool:
        """Whether both count the same; metrics count more where queries are audited."""
        if not self.audited_ids:
            return self.records == self.metrics
        fields = CacheUse.__struct_fields__
        return all(getattr(self.metrics, each) >= getattr(self.records, each) for each in fields)


def run(options: TrafficOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Raises `CarpoolError`."""
    run = open_run("traffic", options, may_be_other=True)
    budget_bytes = PASSAGE_BUFFERS_BYTES + int(run.index.segment_bytes * options.budget_share)
    budget_name = environment_name("searcher", "budget_bytes")
    if budget_name in run.settings:
        raise ConfigError("set the searcher's budget with --budget-share, not with --set")
    run.settings[budget_name] = str(budget_bytes)
    rates: tuple[tuple[Kind, float], ...] = (
        ("text", options.text_rate_per_s),
        ("vectors", options.vector_rate_per_s),
    )
    results: dict[str, TrafficResult] = {}
    with progress_bars() as tell:
        for kind, rate_per_s in rates:
            if rate_per_s > 0:
                results[kind] = measure(run, kind, rate_per_s, tell)
    return run.finish(
        results,
        promises=traffic_promises(results, budget_bytes),
        results={"budget_bytes": budget_bytes, **results},
        **run.facts(run.data.questions_path(TRAFFIC), run.data.vectors_path(TRAFFIC)),
    )


def measure(run: CorpusRun, kind: Kind, rate_per_s: float, tell: Tell) -> TrafficResult:
    """Runs one load. Blocks. Raises `CarpoolError` when the run itself failed."""
    questions = run.questions(TRAFFIC, kind)
    with run.session(SERVICES, kind) as session:
        searcher = session.stack["searcher"]
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
        after = read_counters(searcher)
        return _result(session, load, {name: after[name] - before[name] for name in after})


def _result(session: Session, load: SentLoad, counters: Mapping[str, int]) -> TrafficResult:
    ids, recorder = load.sent.keys(), session.recorder
    records = recorder.records(RETRIEVALS.name)
    found = final_retrievals(records, ids)
    answers = answers_of(recorder.records(ANSWERS.name), ids)
    use = cache_use(retrieval for retrieval, _ in found.values())
    return TrafficResult(
        offered_per_s=load.summary.rate_per_s,
        retrieved_per_s=retrieved_per_s(load.sent, found),
        accounting=retrieval_accounting(ids, records, answers),
        stages_ms=stages_ms(load.sent, found),
        hit_share=use.ram / max(1, use.ram + use.ssd),
        records=use,
        metrics=CacheUse(
            ram=counters["ram"], ssd=counters["ssd"], bytes_read=counters["demand_bytes"]
        ),
        audited_ids=counters["audited_ids"],
        bytes_a_query=(counters["demand_bytes"] + counters["prefetch_bytes"]) / max(1, len(found)),
        memory={name: memory_of(session.stack[name].pid) for name in SERVICES},
    )


def stages_ms(
    sent: Mapping[str, SentQuestion], found: Mapping[str, tuple[Retrieval, int]]
) -> dict[str, Spread]:
    """Returns the spread of each stage: those of `STAGES` in their order, then any others.

    `found`: each retrieval and when it was read, epoch us. A query counts only for the stages that
    it went through.
    """
    by_stage: dict[str, list[float]] = {}
    for query_id, (retrieval, received_us) in found.items():
        question = sent[query_id]
        timings_us = {
            **retrieval.timings_us,
            "send_delay": question.sent_us - question.intended_us,
            "return": received_us - retrieval.completed_us,
            "total": received_us - question.intended_us,
        }
        for stage, took_us in timings_us.items():
            by_stage.setdefault(stage, []).append(took_us / 1_000)
    names = [*(stage for stage in STAGES if stage in by_stage), *(by_stage.keys() - set(STAGES))]
    computed = spreads(by_stage)
    return {stage: computed[stage] for stage in names}


def cache_use(retrievals: Iterable[Retrieval]) -> CacheUse:
    """Returns the sums over `retrievals`."""
    ram = ssd = bytes_read = 0
    for retrieval in retrievals:
        ram += sum(probe.tier == "ram" for probe in retrieval.probes)
        ssd += sum(probe.tier == "ssd" for probe in retrieval.probes)
        bytes_read += retrieval.bytes_read
    return CacheUse(ram=ram, ssd=ssd, bytes_read=bytes_read)


def read_counters(searcher: ServiceProcess) -> dict[str, int]:
    """Returns the counters of the searcher's /metrics."""

    def read(name: str, **labels: str) -> int:
        return int(searcher.metric(f"carpool_{name}", **labels))

    return {
        "ram": read("cluster_requests_total", tier="ram"),
        "ssd": read("cluster_requests_total", tier="ssd"),
        "demand_bytes": read("bytes_read_total", purpose="demand"),
        "prefetch_bytes": read("bytes_read_total", purpose="prefetch"),
        "audited_ids": read("audited_ids_total"),
    }


def retrieved_per_s(
    sent: Mapping[str, SentQuestion], found: Mapping[str, tuple[Retrieval, int]]
) -> float:
    """Returns retrievals a second, from the first question's time to the last retrieval."""
    if not found:
        return 0.0
    began_us = min(sent[query_id].intended_us for query_id in found)
    took_us = max(received_us for _, received_us in found.values()) - began_us
    return len(found) * 1_000_000 / max(1, took_us)


def traffic_promises(results: Mapping[str, TrafficResult], budget_bytes: int) -> dict[str, bool]:
    """Returns each promise and whether it was kept."""
    promises: dict[str, bool] = {}
    for kind, result in results.items():
        searcher, grouper = result.memory["searcher"], result.memory["grouper"]
        promises |= {
            f"{kind}: each question has one retrieval": result.accounting.holds,
            f"{kind}: records and metrics agree on cache and bytes": (
                result.records_agree_with_metrics
            ),
            f"{kind}: grouper under 900 MB": grouper.resident_bytes_max < GROUPER_BYTES_MAX,
            f"{kind}: searcher within 150 MB beside its budget": searcher.anonymous_bytes_max
            <= budget_bytes + BESIDE_BUDGET_BYTES_MAX,
        }
    return promises

"""`carpool bench traffic`: times, cache, bytes and memory under a stream of questions.

The load is open: a question is sent at its time, and its time counts from when it was due.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bench.core.accounting import Accounting, answers_of, final_retrievals, retrieval_accounting
from bench.core.load import SentQuestion, even, poisson
from bench.core.memory import MemoryUse, memory_of
from bench.core.session import SentLoad, Session
from bench.core.spread import Spread, spreads
from bench.data.evaluation import TRAFFIC
from bench.services.corpus import CorpusRun, Kind
from bench.services.options import TrafficOptions
from carpool.errors import ConfigError
from carpool.settings import environment_name
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, RETRIEVALS
from searcher.passages.open import PASSAGE_BUFFERS_BYTES

SERVICES = ("grouper", "searcher")
RATES_PER_S: dict[Kind, float] = {"text": 50.0, "vectors": 200.0}
SETTLE_S = 2.0
WARM_UP = 20
"""Questions that are sent first and not measured: a model's first batch is slow."""
MIB = 1024 * 1024
BESIDE_BUDGET_BYTES_MAX = 150 * MIB
GROUPER_BYTES_MAX = 900 * MIB


class TrafficResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one load. Times in ms over all its queries."""

    offered_per_s: float
    accounting: Accounting
    stages_ms: dict[str, Spread]
    memory: dict[str, MemoryUse]


def run(options: TrafficOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Raises `CarpoolError`."""
    run = CorpusRun("traffic", options)
    budget_bytes = PASSAGE_BUFFERS_BYTES + int(run.index.segment_bytes * options.budget_share)
    budget_name = environment_name("searcher", "budget_bytes")
    if budget_name in run.settings:
        raise ConfigError("set the searcher's budget with --budget-share, not with --set")
    run.settings[budget_name] = str(budget_bytes)
    results: dict[str, TrafficResult] = {
        kind: measure(run, kind, rate) for kind, rate in RATES_PER_S.items()
    }
    return run.finish(
        {"traffic": results},
        promises=traffic_promises(results, budget_bytes),
        results={"budget_bytes": budget_bytes, **results},
        **run.facts(run.data.file(f"{TRAFFIC}.jsonl.gz"), run.data.vectors_path(TRAFFIC)),
    )


def measure(run: CorpusRun, kind: Kind, rate_per_s: float) -> TrafficResult:
    """Runs one load. Blocks. Raises `CarpoolError` when the run itself failed."""
    questions = run.questions(TRAFFIC, kind)
    run.note(f"{kind}: {len(questions):,} questions, {rate_per_s:g} a second")
    with run.session(SERVICES, kind) as session:
        session.ask(questions[:WARM_UP], run.plan, even(rate_per_s))
        load = session.ask(
            questions, run.plan, poisson(rate_per_s, run.options.seed), settle_s=SETTLE_S
        )
        return _result(session, load, rate_per_s)


def _result(session: Session, load: SentLoad, rate_per_s: float) -> TrafficResult:
    ids, recorder = load.keys(), session.recorder
    records = recorder.records(RETRIEVALS.name)
    found = final_retrievals(records, ids)
    return TrafficResult(
        offered_per_s=rate_per_s,
        accounting=retrieval_accounting(
            ids, records, answers_of(recorder.records(ANSWERS.name), ids)
        ),
        stages_ms=stages_ms(load, found),
        memory={name: memory_of(session.stack[name].pid) for name in SERVICES},
    )


def stages_ms(
    sent: Mapping[str, SentQuestion], found: Mapping[str, tuple[Retrieval, int]]
) -> dict[str, Spread]:
    """Returns the spread of each stage.

    The benchmark measures `send_delay`, `return` and `total`; the services report the others.
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
    return spreads(by_stage)


def traffic_promises(results: Mapping[str, TrafficResult], budget_bytes: int) -> dict[str, bool]:
    """Returns each promise and whether it was kept."""
    promises: dict[str, bool] = {}
    for kind, result in results.items():
        searcher, grouper = result.memory["searcher"], result.memory["grouper"]
        promises |= {
            f"{kind}: each question has one retrieval": result.accounting.holds,
            f"{kind}: grouper under 900 MB": grouper.resident_bytes_max < GROUPER_BYTES_MAX,
            f"{kind}: searcher within 150 MB beside its budget": searcher.anonymous_bytes_max
            <= budget_bytes + BESIDE_BUDGET_BYTES_MAX,
        }
    return promises

"""What the commands of `carpool bench` do: data and index, the runs, the report. `bench.cli` has
their options.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from bench.core.machine import Machine, data_file, program, this_machine, this_revision
from bench.core.progress import progress_bars
from bench.core.report import IndexFacts, Report, finish
from bench.data.evaluation import CLAIMS, CORPUS, TRAFFIC, EvaluationData, find_data
from bench.data.index import BenchIndex, corpus_index, memory_search, tiny_index
from bench.services.claims import ClaimsRequest, run_claims
from bench.services.report import print_claims, print_traffic
from bench.services.traffic import (
    Arrivals,
    Footprint,
    Kind,
    TrafficRequest,
    TrafficResult,
    measure_footprint,
    run_traffic,
    traffic_promises,
)
from carpool.embedding import EmbeddingSettings
from carpool.errors import ConfigError
from carpool.settings import environment_name
from carpool.testing.llm_text import NAME as STAND_IN_MODEL
from producers.read_questions import NpyRows, Question, with_vectors
from producers.send_load import LoadPlan

FOOTPRINT_RATE_PER_S = 200.0
STAND_IN = "stand-in"
"""What is given for an LLM server's URL to run the LLM stand-in instead."""


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """What both commands are told. `model` None: the default embedding model. `settings`:
    SECTION.NAME=VALUE each.
    """

    data: Path | None
    bootstrap: str | None
    index: Path | None
    work: Path
    nlist: int
    model: str | None
    settings: tuple[str, ...]
    seed: int
    limit: int | None
    json_file: Path | None


class ClaimsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `claims` is told besides. `llm_url`: a server's API, `stand-in`, or empty."""

    kind: Kind
    nprobe: int | None
    rate_per_s: float
    generate: int
    llm_url: str
    llm_model: str


class TrafficOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `traffic` is told besides. A rate of 0 leaves the run out; `footprint`: measure what the
    searcher takes by itself.
    """

    text_rate_per_s: float
    vector_rate_per_s: float
    arrivals: Arrivals
    warm_up: int
    budget_share: float
    footprint: bool


class _Run(msgspec.Struct, frozen=True, kw_only=True):
    """Data, index and settings of the services, found or made."""

    common: Common
    data: EvaluationData
    index: BenchIndex
    embedding: EmbeddingSettings
    work_dir: Path
    settings: dict[str, str]
    started_s: float
    machine: Machine


def claims(common: Common, options: ClaimsOptions) -> bool:
    """Runs `carpool bench claims`; returns whether its promises held. Raises `CarpoolError`."""
    if options.generate and not options.llm_url:
        raise ConfigError(
            f"--generate needs an LLM: name its server with --llm-url, or say --llm-url {STAND_IN}"
        )
    run = _prepare(common, "claims", _llm_settings(options))
    asked = _as_asked(run, CLAIMS, options.kind, run.data.questions(CLAIMS, common.limit))
    request = ClaimsRequest(
        bootstrap=common.bootstrap,
        work_dir=run.work_dir,
        plan=LoadPlan(embedding_model=run.index.manifest.embedding_model),
        nprobe=options.nprobe,
        rate_per_s=options.rate_per_s,
        generate=options.generate,
        llm_url=options.llm_url if options.llm_url != STAND_IN else None,
        settings=run.settings,
    )
    search = memory_search(run.data, run.index)
    with progress_bars() as tell:
        result = run_claims(request, run.index, asked, run.data.evidence(), search, tell)
    files = (run.data.questions_path(CLAIMS), run.data.evidence_path)
    report = _report(run, "claims", files, options, result.promises, result)
    return finish(report, common.json_file, lambda console: print_claims(console, result))


def traffic(common: Common, options: TrafficOptions) -> bool:
    """Runs `carpool bench traffic`; returns whether its promises held. Raises `CarpoolError`."""
    run = _prepare(common, "traffic", {})
    budget_bytes = int(run.index.segment_bytes * options.budget_share)
    budget_name = environment_name("searcher", "budget_bytes")
    if budget_name in run.settings:
        raise ConfigError(
            "the searcher's budget is set by --budget-share here, not by --set "
            "searcher.budget_bytes"
        )
    run.settings[budget_name] = str(budget_bytes)
    asked = run.data.questions(TRAFFIC, common.limit)
    rates: dict[Kind, float] = {
        "text": options.text_rate_per_s,
        "vectors": options.vector_rate_per_s,
    }
    results: list[TrafficResult] = []
    footprint: Footprint | None = None
    with progress_bars() as tell:
        for kind, rate in rates.items():
            if rate > 0:
                request = _traffic_request(run, options, kind, rate)
                results.append(
                    run_traffic(request, run.index, _as_asked(run, TRAFFIC, kind, asked), tell)
                )
        if options.footprint:
            tiny = tiny_index(
                run.data, work_dir=run.work_dir, nlist=common.nlist, embedding=run.embedding
            )
            request = _traffic_request(
                run, options, "vectors", rates["vectors"] or FOOTPRINT_RATE_PER_S
            )
            footprint = measure_footprint(
                request, tiny, _as_asked(run, TRAFFIC, "vectors", asked), tell
            )
    report = _report(
        run,
        "traffic",
        (run.data.questions_path(TRAFFIC), run.data.vectors_path(TRAFFIC)),
        options,
        traffic_promises(results, footprint, budget_bytes),
        {"budget_bytes": budget_bytes, "runs": results, "footprint": footprint},
    )
    return finish(
        report,
        common.json_file,
        lambda console: print_traffic(console, results, footprint, budget_bytes),
    )


def _llm_settings(options: ClaimsOptions) -> dict[str, str]:
    model = STAND_IN_MODEL if options.llm_url == STAND_IN else options.llm_model
    return {environment_name("llm", "model"): model} if options.generate and model else {}


def _prepare(common: Common, command: str, settings: dict[str, str]) -> _Run:
    started_s, machine = time.time(), this_machine()  # its load as it was before the run
    console = Console(stderr=True, highlight=False)
    data = find_data(common.data)
    given = parse_settings(common.settings)
    embedding = EmbeddingSettings(model=common.model) if common.model else EmbeddingSettings()
    work_dir = (common.work / command).resolve()
    work_dir.mkdir(parents=True, exist_ok=True)
    index = corpus_index(
        data,
        index_dir=(common.index or common.work / f"index-{common.nlist}-{common.seed}").resolve(),
        nlist=common.nlist,
        seed=common.seed,
        embedding=embedding,
        note=console.print,
    )
    console.print(f"logs of the services: {work_dir}")
    return _Run(
        common=common,
        data=data,
        index=index,
        embedding=embedding,
        work_dir=work_dir,
        settings={environment_name("embedding", "model"): embedding.model, **settings, **given},
        started_s=started_s,
        machine=machine,
    )


def parse_settings(given: Sequence[str]) -> dict[str, str]:
    """Returns SECTION.NAME=VALUE as environment variables of the services. Raises `ConfigError` for
    anything else.
    """
    variables = {}
    for text in given:
        name, equals, value = text.partition("=")
        section, dot, setting = name.partition(".")
        if not (equals and dot and section and setting):
            raise ConfigError(
                f"--set {text}: write SECTION.NAME=VALUE, for example grouper.policy=per_query"
            )
        variables[environment_name(section, setting)] = value
    return variables


def _as_asked(
    run: _Run, name: str, kind: Kind, questions: Sequence[Question]
) -> tuple[Question, ...]:
    """The questions as text, or with the vectors of their rows and without text."""
    if kind == "text":
        return tuple(questions)
    return with_vectors(questions, NpyRows(run.data.vectors_path(name)), keep_text=False)


def _traffic_request(
    run: _Run, options: TrafficOptions, kind: Kind, rate_per_s: float
) -> TrafficRequest:
    return TrafficRequest(
        kind=kind,
        bootstrap=run.common.bootstrap,
        work_dir=run.work_dir / kind,
        plan=LoadPlan(embedding_model=run.index.manifest.embedding_model),
        rate_per_s=rate_per_s,
        arrivals=options.arrivals,
        seed=run.common.seed,
        warm_up=options.warm_up,
        settings=run.settings,
    )


def _report(
    run: _Run,
    benchmark: str,
    files: Sequence[Path],
    options: ClaimsOptions | TrafficOptions,
    promises: dict[str, bool],
    results: Any,
) -> Report:
    manifest = run.index.manifest
    all_files = (run.data.corpus_path, run.data.vectors_path(CORPUS), *files)
    common = {"limit": run.common.limit, "seed": run.common.seed, "services": run.settings}
    return Report(
        benchmark=benchmark,
        command=program(),
        started=datetime.fromtimestamp(run.started_s, UTC).isoformat(timespec="seconds"),
        duration_s=time.time() - run.started_s,
        machine=run.machine,
        revision=this_revision(),
        broker=run.common.bootstrap or "embedded",
        data=tuple(data_file(path) for path in all_files),
        index=IndexFacts(
            index_version=manifest.index_version,
            row_count=manifest.row_count,
            dimension=manifest.dimension,
            nlist=manifest.nlist,
            nprobe_default=manifest.nprobe_default,
            segment_bytes=run.index.segment_bytes,
            embedding_model=manifest.embedding_model,
        ),
        settings=msgspec.to_builtins(options) | common,
        promises=promises,
        results=results,
    )

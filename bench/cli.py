"""The commands `carpool bench claims` and `carpool bench traffic`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.claims import ClaimsRequest, run_claims
from bench.data import CLAIMS, CORPUS, TRAFFIC, EvaluationData, find_data
from bench.index import BenchIndex, corpus_index, memory_search, tiny_index
from bench.machine import data_file, program, this_machine, this_revision
from bench.report import IndexFacts, Report, print_claims, print_promises, print_traffic, write_report
from bench.traffic import (
    Footprint,
    Kind,
    Tell,
    TrafficRequest,
    TrafficResult,
    measure_footprint,
    run_traffic,
    traffic_promises,
)
from carpool.embedding import EmbeddingSettings
from carpool.errors import ConfigError
from carpool.settings import environment_name
from carpool.testing.llm_text import NAME as STAND_IN
from producers.load import LoadPlan
from producers.questions import Question, Vectors, with_vectors

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Does it pay? Runs the real services on evaluation data and reports what they did, as tables and as JSON.",
)

DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="Folder of the evaluation data; without it, the one that CARPOOL_DATA names."),
]
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        help="Brokers to use, host:port. No other service of Carpool may run on them. Without it an embedded broker is started "
        "for the run.",
    ),
]
IndexOption = Annotated[
    Path | None,
    typer.Option(
        "--index", help="Folder of the index: used if it is there, built there if not. Default: under --work."
    ),
]
WorkOption = Annotated[
    Path, typer.Option("--work", help="Folder for the index and the logs of the services; on a disk, not in memory.")
]
NlistOption = Annotated[int, typer.Option("--nlist", min=1, help="Clusters of the index.")]
ModelOption = Annotated[
    str, typer.Option("--model", help="Embedding model, a name or a folder: the one that made the vectors of the data.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.NAME=VALUE",
        help="A setting of the services, such as grouper.policy=none. Repeatable.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the clusters and of the arrivals.")]
JsonOption = Annotated[
    Path | None, typer.Option("--json", help="File for the figures, with machine, data and settings; - for stdout.")
]
DEFAULT_WORK = Path(".carpool/bench")
DEFAULT_EMBEDDING = EmbeddingSettings().model


class _Run(msgspec.Struct, kw_only=True):
    """What both commands need: data, index, settings of the services, and a place for it all."""

    data: EvaluationData
    index: BenchIndex
    embedding: EmbeddingSettings
    bootstrap: str | None
    work_dir: Path
    settings: dict[str, str]
    console: Console
    started_s: float

    def report(
        self,
        benchmark: str,
        *,
        files: Sequence[Path],
        settings: dict[str, Any],
        promises: dict[str, bool],
        results: Any,
    ) -> Report:
        manifest = self.index.manifest
        return Report(
            benchmark=benchmark,
            command=program(),
            started=datetime.fromtimestamp(self.started_s, UTC).isoformat(timespec="seconds"),
            duration_s=time.time() - self.started_s,
            machine=this_machine(),
            revision=this_revision(),
            broker=self.bootstrap or "embedded",
            data=tuple(data_file(path) for path in files),
            index=IndexFacts(
                index_version=manifest.index_version,
                row_count=manifest.row_count,
                dimension=manifest.dimension,
                nlist=manifest.nlist,
                nprobe_default=manifest.nprobe_default,
                segment_bytes=self.index.segment_bytes,
                embedding_model=manifest.embedding_model,
            ),
            settings={**settings, "services": self.settings},
            promises=promises,
            results=results,
        )


@app.command()
def claims(
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    index: IndexOption = None,
    work: WorkOption = DEFAULT_WORK,
    nlist: NlistOption = 100,
    model: ModelOption = DEFAULT_EMBEDDING,
    kind: Annotated[
        Literal["text", "vectors"],
        typer.Option("--as", help="text: the grouper embeds; vectors: precomputed ones are published."),
    ] = "text",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first claims.")] = None,
    nprobe: Annotated[
        int | None, typer.Option("--nprobe", min=1, help="Clusters to probe; without it, the index's default.")
    ] = None,
    rate: Annotated[float, typer.Option("--rate", help="Claims published a second.")] = 100.0,
    generate: Annotated[int, typer.Option("--generate", min=0, help="Claims that also go through the generator.")] = 0,
    llm: Annotated[
        str, typer.Option("--llm-url", help="The LLM server's OpenAI API, http://HOST:PORT/v1, or stand-in: no model.")
    ] = "",
    llm_model: Annotated[str, typer.Option("--llm-model", help="Name of the model at the LLM server.")] = "",
    settings: SetOption = None,
    seed: SeedOption = 0,
    json_file: JsonOption = None,
) -> None:
    """Does Carpool find what an exact search finds, and is what it finds evidence?

    Publishes the claims of FEVER, runs grouper and searcher on an index of the corpus, and compares each retrieval with
    FAISS IVF-Flat in memory: same vectors, same centroids, same nprobe, and the query vectors that the grouper used. Then
    it counts how often an evidence page is among the first five, beside exact search and other nprobes.

    Ends with 1 when a promise is broken: a claim lost or retrieved twice, ids that differ where scores do not, evidence
    more than one point below exact search, a claim for the generator without an answer.

    [bold]Examples[/]
      carpool bench claims --data DATA --json claims.json
      carpool bench claims --data DATA --generate 50 --llm-url http://127.0.0.1:8000/v1
    """
    run = _prepare(data, bootstrap, index, work / "claims", nlist, model, settings, seed)
    questions = _as_asked(run, CLAIMS, kind, run.data.questions(CLAIMS, limit))
    if generate and not llm:
        raise ConfigError("--generate needs an LLM: name its server with --llm-url, or say --llm-url stand-in")
    llm_settings = {environment_name("llm", "model"): STAND_IN if llm == "stand-in" else llm_model} if llm else {}
    request = ClaimsRequest(
        bootstrap=bootstrap,
        work_dir=run.work_dir,
        plan=LoadPlan(embedding_model=run.index.manifest.embedding_model),
        nprobe=nprobe,
        rate_per_s=rate,
        generate=generate,
        llm_url=llm if llm and llm != "stand-in" else None,
        settings=run.settings | {name: value for name, value in llm_settings.items() if value},
    )
    with _telling(run.console) as tell:
        result = run_claims(
            request, run.index, questions, run.data.evidence(), memory_search(run.data, run.index), tell
        )
    report = run.report(
        "claims",
        files=(
            run.data.corpus_path,
            run.data.vectors_path(CORPUS),
            run.data.questions_path(CLAIMS),
            run.data.evidence_path,
        ),
        settings={"as": kind, "limit": limit, "nprobe": nprobe, "rate_per_s": rate, "generate": generate, "seed": seed},
        promises=result.promises,
        results=result,
    )
    _finish(report, json_file, lambda console: print_claims(console, result))


@app.command()
def traffic(
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    index: IndexOption = None,
    work: WorkOption = DEFAULT_WORK,
    nlist: NlistOption = 100,
    model: ModelOption = DEFAULT_EMBEDDING,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first questions.")] = None,
    text_rate: Annotated[
        float, typer.Option("--text-rate", help="Questions a second, as text; 0: no such run.")
    ] = 50.0,
    vector_rate: Annotated[
        float, typer.Option("--vector-rate", help="Questions a second, as vectors; 0: no such run.")
    ] = 200.0,
    arrivals: Annotated[
        Literal["poisson", "even"], typer.Option("--arrivals", help="poisson: as from many askers; even: like a clock.")
    ] = "poisson",
    warm_up: Annotated[
        int, typer.Option("--warm-up", min=0, help="Questions asked first and not measured: a first batch is slow.")
    ] = 20,
    budget_share: Annotated[
        float,
        typer.Option(
            "--budget-share",
            min=0.01,
            max=10,
            help="The searcher's budget as a share of the index's clusters, 0.4: 40 %.",
        ),
    ] = 0.4,
    footprint: Annotated[
        int,
        typer.Option("--footprint", min=0, help="Questions to measure the searcher without an index by; 0: do not."),
    ] = 1000,
    settings: SetOption = None,
    seed: SeedOption = 0,
    json_file: JsonOption = None,
) -> None:
    """What do grouper and searcher do with a stream of questions?

    Publishes the questions of HotpotQA twice: as text, which the grouper embeds, and as vectors. The load is open: a
    question is due at its time whether or not earlier ones are back, and its total counts from then until its retrieval
    is read here. Reports p50 and p99 of every stage over all questions, clusters by the tier where they were found, bytes
    read a query (as the records say and as the metrics say), sizes of windows, and memory.

    The searcher may hold only a share of the index (--budget-share), so that its cache has work to do. Ends with 1 when a
    promise is broken: a question lost or retrieved twice, records and metrics that disagree, memory over its bounds.

    [bold]Examples[/]
      carpool bench traffic --data DATA --json traffic.json
      carpool bench traffic --data DATA --text-rate 0 --vector-rate 500 --set grouper.policy=none
    """
    run = _prepare(data, bootstrap, index, work / "traffic", nlist, model, settings, seed)
    budget_bytes = int(run.index.segment_bytes * budget_share)
    budget_name = environment_name("searcher", "budget_bytes")
    if budget_name in run.settings:
        raise ConfigError("the searcher's budget is set by --budget-share here, not by --set searcher.budget_bytes")
    run.settings[budget_name] = str(budget_bytes)
    asked = run.data.questions(TRAFFIC, limit)
    rates: dict[Kind, float] = {"text": text_rate, "vectors": vector_rate}
    results: list[TrafficResult] = []
    measured: Footprint | None = None
    with _telling(run.console) as tell:
        for kind, rate in rates.items():
            if rate > 0:
                request = _traffic_request(run, kind, rate, arrivals, seed, warm_up)
                results.append(run_traffic(request, run.index, _as_asked(run, TRAFFIC, kind, asked), tell))
        if footprint:
            tiny = tiny_index(run.data, work_dir=run.work_dir, embedding=run.embedding)
            request = _traffic_request(run, "vectors", vector_rate or 200.0, arrivals, seed, 0)
            few = _as_asked(run, TRAFFIC, "vectors", asked[:footprint])
            measured = measure_footprint(request, tiny, few, tell)
    report = run.report(
        "traffic",
        files=(run.data.corpus_path, run.data.vectors_path(CORPUS), run.data.questions_path(TRAFFIC)),
        settings={
            "limit": limit,
            "rates_per_s": rates,
            "arrivals": arrivals,
            "warm_up": warm_up,
            "budget_share": budget_share,
            "budget_bytes": budget_bytes,
            "seed": seed,
        },
        promises=traffic_promises(results, measured, budget_bytes),
        results={"runs": results, "footprint": measured},
    )
    _finish(report, json_file, lambda console: print_traffic(console, results, measured, budget_bytes))


def _prepare(
    data: Path | None,
    bootstrap: str | None,
    index: Path | None,
    work_dir: Path,
    nlist: int,
    model: str,
    settings: list[str] | None,
    seed: int,
) -> _Run:
    started_s = time.time()
    console = Console(stderr=True)
    found = find_data(data)
    work_dir.mkdir(parents=True, exist_ok=True)
    embedding = EmbeddingSettings(model=model)
    given = parse_settings(settings or [])
    built = corpus_index(
        found,
        index_dir=index or work_dir.parent / f"index-{CORPUS}-{nlist}-{seed}",
        nlist=nlist,
        seed=seed,
        embedding=embedding,
        note=lambda text: console.print(text, highlight=False),
    )
    return _Run(
        data=found,
        index=built,
        embedding=embedding,
        bootstrap=bootstrap,
        work_dir=work_dir.resolve(),
        settings={environment_name("embedding", "model"): model, **given},
        console=console,
        started_s=started_s,
    )


def parse_settings(given: Sequence[str]) -> dict[str, str]:
    """Returns SECTION.NAME=VALUE as environment variables of the services. Raises `ConfigError` for anything else."""
    variables = {}
    for text in given:
        name, equals, value = text.partition("=")
        section, dot, setting = name.partition(".")
        if not (equals and dot and section and setting):
            raise ConfigError(f"--set {text}: write SECTION.NAME=VALUE, for example grouper.policy=none")
        variables[environment_name(section, setting)] = value
    return variables


def _as_asked(run: _Run, name: str, kind: Kind, questions: Sequence[Question]) -> tuple[Question, ...]:
    """The questions as text, or with the vectors of their rows and without text."""
    if kind == "text":
        return tuple(questions)
    return with_vectors(questions, Vectors(run.data.vectors_path(name)), keep_text=False)


def _traffic_request(
    run: _Run, kind: Kind, rate: float, arrivals: Literal["even", "poisson"], seed: int, warm_up: int
) -> TrafficRequest:
    return TrafficRequest(
        kind=kind,
        bootstrap=run.bootstrap,
        work_dir=run.work_dir / kind,
        plan=LoadPlan(embedding_model=run.index.manifest.embedding_model),
        rate_per_s=rate,
        arrivals=arrivals,
        seed=seed,
        warm_up=warm_up,
        settings=run.settings,
    )


@contextmanager
def _telling(console: Console) -> Iterator[Tell]:
    """Yields what shows progress on standard error: a bar for each step on a terminal, nothing elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, refresh_per_second=2) as progress:
        tasks: dict[str, Any] = {}

        def tell(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = progress.add_task(step, total=total)
            progress.update(tasks[step], completed=done, total=total)

        yield tell


def _finish(report: Report, json_file: Path | None, show: Any) -> None:
    """Tables, promises, JSON; ends with 1 when a promise is broken."""
    console = Console(file=sys.stderr if str(json_file) == "-" else sys.stdout)
    show(console)
    print_promises(console, report.promises)
    if json_file is not None:
        write_report(report, json_file)
    if not report.holds:
        raise typer.Exit(1)

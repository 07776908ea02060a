"""What `carpool bench figure` does: makes the missing runs, then report, table and picture."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.core.machine import data_file
from bench.core.progress import Tell, progress_bars
from bench.core.report import RunStart, finish, write_report
from bench.core.spread import Spread
from bench.data.evaluation import EvaluationData, find_data
from bench.data.index import BenchIndex
from bench.papers.cagr.draw import draw
from bench.papers.cagr.outcome import FigureRun
from bench.papers.cagr.overlap import BATCHES, Overlap, overlap_of
from bench.papers.cagr.plan import DATASETS, FigureLoad, PaperSettings, RunSpec, runs_of
from bench.papers.cagr.questions import FILES, load_questions
from bench.papers.cagr.run import make_run
from bench.papers.cagr.stated import STATED
from carpool.disk.centroids import probe
from carpool.disk.index import OpenIndex, open_index
from carpool.embedding import Embedder, EmbeddingSettings, load_embedder
from carpool.errors import ConfigError

RUNS_NAME = "runs"
OVERLAP_QUESTIONS = 5 * max(BATCHES)


class FigureOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a figure. `model`: None for the services' own; `paper`: the paper's settings."""

    figure: int
    index: Path
    model: str | None
    out: Path
    load: FigureLoad
    paper: PaperSettings = PaperSettings()


class FigureResults(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a report. `stated`: what the paper's text says of the figure."""

    figure: int
    stated: tuple[str, ...]
    runs: tuple[FigureRun, ...] = ()
    overlaps: tuple[Overlap, ...] = ()


def figure(
    data_dir: Path | None, options: FigureOptions, environ: Mapping[str, str] = os.environ
) -> bool:
    """Measures and draws a figure; returns whether every promise was kept. Blocks for minutes."""
    start = RunStart.now()
    data = find_data(data_dir, environ)
    index = open_index(options.index)
    runs: tuple[FigureRun, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    try:
        with threadpool_limits(limits=1, user_api="blas"), progress_bars() as tell:
            if options.figure == 1:
                overlaps = _overlaps(options, index, data)
            else:
                runs = _runs(options, index, data, tell)
    finally:
        index.close()
    results = FigureResults(
        figure=options.figure, stated=STATED[options.figure], runs=runs, overlaps=overlaps
    )
    used = DATASETS if overlaps else tuple(dict.fromkeys(run.spec.dataset for run in runs))
    report = start.report(
        "figure",
        settings=options,
        promises={
            "bytes by the kernel agree with our own count within 2 %": all(
                run.totals.bytes_agree for run in runs
            )
        },
        results=results,
        data=tuple(data_file(data.questions_path(FILES[dataset])) for dataset in used),
        index=BenchIndex(dir=index.dir, manifest=index.manifest).facts,
    )
    draw(results, options.out / f"figure-{options.figure}.png")

    def show(console: Console) -> None:
        console.print(_overlap_table(results) if overlaps else _run_table(results))
        for line in results.stated:
            console.print(f"the paper: {line}", soft_wrap=True)

    return finish(report, options.out / f"figure-{options.figure}.json", show)


def find_run(out: Path, spec: RunSpec, index_version: str) -> FigureRun | None:
    """Returns the run that was made with these settings on this index, or None."""
    try:
        run = msgspec.json.decode(_run_path(out, spec).read_bytes(), type=FigureRun)
    except (OSError, msgspec.DecodeError):
        return None  # not there, cut short, or of another version of this bench
    return run if (run.spec, run.index_version) == (spec, index_version) else None


def _run_path(out: Path, spec: RunSpec) -> Path:
    return out / RUNS_NAME / f"{spec.name}.json"


def _overlaps(
    options: FigureOptions, index: OpenIndex, data: EvaluationData
) -> tuple[Overlap, ...]:
    embedder = _embedder(index, options.model)
    overlaps = []
    for dataset in DATASETS:
        texts = load_questions(data, dataset, OVERLAP_QUESTIONS).measured
        probes = probe(index.centroids, embedder.encode(texts), options.paper.nprobe)
        overlaps.append(overlap_of(dataset, probes, options.paper))
    return tuple(overlaps)


def _runs(
    options: FigureOptions, index: OpenIndex, data: EvaluationData, tell: Tell
) -> tuple[FigureRun, ...]:
    """Returns the runs of the figure; makes those that are not in `options.out`."""
    specs = runs_of(options.figure, options.load, options.paper)
    version = index.manifest.index_version
    found = {spec: find_run(options.out, spec, version) for spec in specs}
    embedder: Embedder | None = None
    runs = []
    for spec in specs:
        run = found[spec]
        if run is None:
            embedder = embedder or _embedder(index, options.model)
            questions = load_questions(data, spec.dataset, spec.queries)
            run = make_run(spec, index, embedder, questions, tell)
            write_report(run, _run_path(options.out, spec))
        runs.append(run)
    return tuple(runs)


def _embedder(index: OpenIndex, model: str | None) -> Embedder:
    settings = EmbeddingSettings(model=model) if model else EmbeddingSettings()
    embedder = load_embedder(settings)
    if embedder.fingerprint != index.manifest.embedding_model:
        raise ConfigError(
            f"{index.dir} was built with another embedding model than {settings.model!r} "
            f"({index.manifest.embedding_model_name}): name that with --model"
        )
    embedder.encode(["A first call is slow."])
    return embedder


def _run_table(results: FigureResults) -> Table:
    headings = "query mean,p50,p99,batch mean,p50,p99,encode,hits,MB a query,queries/s,used MB"
    table = Table(title=f"Figure {results.figure}: ms by query (the paper's clock) and by batch")
    table.add_column("run")
    for heading in headings.split(","):
        table.add_column(heading, justify="right")
    for run in results.runs:
        table.add_row(
            run.spec.name,
            *_spread(run.query_ms),
            *_spread(run.batch_ms),
            f"{run.encode_ms:,.1f}",
            f"{run.hit_share:.1%}",
            f"{run.mb_a_query:,.1f}",
            f"{run.queries_per_s:,.1f}",
            f"{run.totals.used_bytes_mean / 1e6:,.0f}",
        )
    return table


def _spread(found: Spread | None) -> tuple[str, str, str]:
    if found is None:
        return ("-", "-", "-")
    return (f"{found.mean:,.1f}", f"{found.p50:,.1f}", f"{found.p99:,.1f}")


def _overlap_table(results: FigureResults) -> Table:
    table = Table(
        "questions",
        "adjacent",
        "any two",
        "best of 99 others",
        "with a best over 60 %",
        "1 and 10",
        title="Figure 1: overlap of the clusters of two questions, Jaccard",
    )
    for found in results.overlaps:
        shares = (found.adjacent, found.any_pair, found.best, found.over_60, found.shown[0][9])
        table.add_row(found.dataset, *(f"{share:.1%}" for share in shares))
    return table

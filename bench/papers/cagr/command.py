"""What `carpool bench figure` does: runs that are missing are made, a figure's JSON, table and
picture come out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.core.machine import data_file, program, this_machine, this_revision
from bench.core.report import IndexFacts
from bench.data.evaluation import EvaluationData, find_data
from bench.papers.cagr.draw import draw
from bench.papers.cagr.outcome import SCHEMA_VERSION, Run
from bench.papers.cagr.overlap import BATCHES, Overlap, overlap_of
from bench.papers.cagr.plan import DATASETS, Load, PaperSettings, RunSpec, runs_of
from bench.papers.cagr.questions import FILES, load_questions
from bench.papers.cagr.report import (
    FigureReport,
    RunStore,
    print_report,
    promises_of,
    read_report,
    write_json,
)
from bench.papers.cagr.run import Tell, make_run
from bench.papers.cagr.stated import STATED
from carpool.disk.centroids import probe
from carpool.disk.index import OpenIndex, open_index
from carpool.embedding import Embedder, EmbeddingSettings, load_embedder
from carpool.errors import ConfigError

TABLE_WIDTH = 170
"""Where there is no terminal that has a width."""
OVERLAP_QUESTIONS = 5 * max(BATCHES)


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What the command is told. `model`: None for the services' own; `png`: where pictures go, None
    beside the JSON; `for_s`: no further run begins after that; `again`: runs that are there are
    made again; `paper`: other settings than the paper's.
    """

    figure: int
    index: Path
    data: Path | None
    model: str | None
    out: Path
    png: Path | None
    load: Load
    for_s: float | None
    again: bool
    paper: PaperSettings = PaperSettings()


def redraw(path: Path, png: Path | None) -> None:
    """Draws a figure out of its JSON. Raises `ConfigError` where that is not one."""
    report = read_report(path)
    picture = (png or path.parent) / f"figure-{report.figure}.png"
    draw(report, picture)
    _tell_people(report, path, picture)


def figure(wishes: Wishes, environ: Mapping[str, str] = os.environ) -> bool:
    """Measures and draws a figure; returns whether every promise held. Blocks for minutes.

    Where `for_s` ends it before all runs are made, nothing is drawn: called again it goes on.
    """
    started, started_s = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    data = find_data(wishes.data, environ)
    index = open_index(wishes.index)
    runs: tuple[Run, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    try:
        with threadpool_limits(limits=1, user_api="blas"):
            if wishes.figure == 1:
                overlaps = _overlaps(index, data, _embedder(index, wishes.model), wishes.paper)
            else:
                runs = _runs(wishes, index, data)
    finally:
        index.close()
    if len(runs) < len(runs_of(wishes.figure, wishes.load, wishes.paper)):
        return True  # told; the next call goes on
    used = DATASETS if overlaps else tuple(dict.fromkeys(run.spec.dataset for run in runs))
    report = FigureReport(
        schema_version=SCHEMA_VERSION,
        figure=wishes.figure,
        command=program(),
        started=started,
        duration_s=round(time.monotonic() - started_s, 3),
        machine=this_machine(),
        revision=this_revision(),
        data=tuple(data_file(data.questions_path(FILES[dataset])) for dataset in used),
        index=_searched(index),
        settings={
            "paper": msgspec.to_builtins(wishes.paper),
            "load": msgspec.to_builtins(wishes.load),
        },
        stated=STATED[wishes.figure],
        promises=promises_of(runs),
        runs=runs,
        overlaps=overlaps,
    )
    path = wishes.out / f"figure-{wishes.figure}.json"
    write_json(report, path)
    picture = (wishes.png or wishes.out) / f"figure-{wishes.figure}.png"
    draw(report, picture)
    _tell_people(report, path, picture)
    return report.holds


def _tell_people(report: FigureReport, path: Path, picture: Path) -> None:
    console = Console()
    print_report(console if console.is_terminal else Console(width=TABLE_WIDTH), report)
    console.print(f"JSON: {path}\npicture: {picture}", soft_wrap=True)


def _overlaps(
    index: OpenIndex, data: EvaluationData, embedder: Embedder, paper: PaperSettings
) -> tuple[Overlap, ...]:
    overlaps = []
    for dataset in DATASETS:
        texts = load_questions(data, dataset, OVERLAP_QUESTIONS).measured
        probes = probe(index.centroids, embedder.encode(texts), paper.nprobe)
        overlaps.append(overlap_of(dataset, probes, paper))
    return tuple(overlaps)


def _runs(wishes: Wishes, index: OpenIndex, data: EvaluationData) -> tuple[Run, ...]:
    """Returns the runs of the figure as far as they are there or there was time to make them."""
    store, console, started_s = RunStore(wishes.out), Console(stderr=True), time.monotonic()
    specs = runs_of(wishes.figure, wishes.load, wishes.paper)
    version = index.manifest.index_version
    found = (
        {}
        if wishes.again
        else {spec: run for spec in specs if (run := store.find(spec, version)) is not None}
    )
    for spec in found:
        console.print(f"{spec.name}: there already, made {found[spec].started}", soft_wrap=True)
    missing = [spec for spec in specs if spec not in found]
    embedder = _embedder(index, wishes.model) if missing else None
    for number, spec in enumerate(missing, start=1):
        if wishes.for_s is not None and time.monotonic() - started_s > wishes.for_s and number > 1:
            console.print(
                f"{len(missing) - number + 1} runs are left: the same command goes on with them"
            )
            break
        assert embedder is not None
        with _progress(console, f"[{number}/{len(missing)}] {spec.name}") as tell:
            run = make_run(
                spec, index, embedder, load_questions(data, spec.dataset, spec.queries), tell
            )
        store.keep(run)
        found[spec] = run
        console.print(_told(spec, run), soft_wrap=True, highlight=False)
    return tuple(found[spec] for spec in specs if spec in found)


def _told(spec: RunSpec, run: Run) -> str:
    own = f"p99 {run.query_ms.p99:,.0f} ms by query, " if run.query_ms is not None else ""
    return (
        f"{spec.name}: {own}{run.batch_ms.p99:,.0f} ms by batch, {run.hit_share:.0%} hits, "
        f"{run.mb_a_query:,.1f} MB a query, "
        f"{run.queries_per_s:,.1f} queries/s{'' if run.totals.bytes_agree else ', BYTES DISAGREE'}"
    )


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


def _searched(index: OpenIndex) -> IndexFacts:
    manifest = index.manifest
    return IndexFacts(
        index_version=manifest.index_version,
        row_count=manifest.row_count,
        dimension=manifest.dimension,
        nlist=manifest.nlist,
        nprobe_default=manifest.nprobe_default,
        segment_bytes=sum(extent.size_bytes for extent in index.extents),
        embedding_model=manifest.embedding_model_name,
    )


@contextmanager
def _progress(console: Console, name: str) -> Iterator[Tell]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(name)

        def tell(phase: str, done: int, total: int) -> None:
            progress.update(
                task, description=f"{name}: {phase}", completed=done, total=max(total, 1)
            )

        yield tell

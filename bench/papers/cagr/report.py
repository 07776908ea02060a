"""What a figure leaves behind: its JSON, from which alone it is drawn, the runs that several
figures share, and a table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.core.machine import DataFile, Machine, Revision
from bench.core.report import IndexFacts
from bench.core.spread import Spread
from bench.papers.cagr.outcome import SCHEMA_VERSION, Run
from bench.papers.cagr.overlap import Overlap
from bench.papers.cagr.plan import RunSpec
from bench.papers.cagr.stated import STATED
from carpool.errors import ConfigError

RUNS_NAME = "runs"


class FigureReport(msgspec.Struct, frozen=True, kw_only=True):
    """A figure. `stated`: what the paper's text says of it. Runs may be of other figures' calls:
    each says when it was made.
    """

    schema_version: int
    figure: int
    command: list[str]
    started: str
    duration_s: float
    machine: Machine
    revision: Revision | None
    data: tuple[DataFile, ...]
    index: IndexFacts
    settings: dict[str, Any]
    stated: tuple[str, ...]
    promises: dict[str, bool]
    runs: tuple[Run, ...] = ()
    overlaps: tuple[Overlap, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every promise held."""
        return all(self.promises.values())


def promises_of(runs: tuple[Run, ...]) -> dict[str, bool]:
    """Returns what the runs of a figure promise, and whether it held."""
    if not runs:
        return {}  # nothing was read
    return {
        "bytes by the kernel agree with our own count within 2 %": all(
            run.totals.bytes_agree for run in runs
        )
    }


class RunStore:
    """The runs of a folder, a file each. Several figures show the same run: it is made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / RUNS_NAME

    def find(self, spec: RunSpec, index_version: str) -> Run | None:
        """Returns the run that was made with these very settings on this index, None where there is
        none.
        """
        path = self._path(spec)
        if not path.is_file():
            return None
        try:
            run = msgspec.json.decode(path.read_bytes(), type=Run)
        except msgspec.DecodeError:
            return None  # of an older version of this bench, or cut short: made again
        is_same = (
            run.spec == spec
            and run.index_version == index_version
            and run.schema_version == SCHEMA_VERSION
        )
        return run if is_same else None

    def keep(self, run: Run) -> None:
        """Writes a run, in place of one of other settings. Raises `ConfigError` where it cannot."""
        write_json(run, self._path(run.spec))

    def _path(self, spec: RunSpec) -> Path:
        return self._folder / f"{spec.name}.json"


def write_json(content: msgspec.Struct, path: Path) -> None:
    """Writes JSON with an array on a line. Raises `ConfigError` where it cannot be written."""
    lines = msgspec.json.format(msgspec.json.encode(content), indent=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lines + b"\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; give another --out") from error


def read_report(path: Path) -> FigureReport:
    """Returns a figure's JSON. Raises `ConfigError` where there is none, or of another version."""
    try:
        report = msgspec.json.decode(path.read_bytes(), type=FigureReport)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"{path} holds no figure: {error}; measure it first, without --plot-only"
        ) from error
    if report.schema_version != SCHEMA_VERSION:
        raise ConfigError(
            f"{path} is of schema version {report.schema_version}, and this is {SCHEMA_VERSION}: "
            "measure it again"
        )
    return report


def print_report(console: Console, report: FigureReport) -> None:
    """Prints what was measured, and what the paper's text states."""
    console.print(_overlap_table(report) if report.overlaps else _run_table(report), soft_wrap=True)
    for line in STATED[report.figure]:
        console.print(f"the paper: {line}", soft_wrap=True)
    for promise, held in report.promises.items():
        console.print(
            f"{'[green]holds [/]' if held else '[red]BROKEN[/]'} {promise}", soft_wrap=True
        )


def _run_table(report: FigureReport) -> Table:
    table = Table(
        title=f"Figure {report.figure}: latencies in ms, by query (the paper's clock) and by batch"
    )
    names = (
        "run",
        "query mean",
        "p50",
        "p99",
        "batch mean",
        "p50",
        "p99",
        "encode",
        "hits",
        "MB a query",
        "queries/s",
        "held MB",
    )
    for name in names:
        table.add_column(name, justify="left" if name == "run" else "right")
    for run in report.runs:
        table.add_row(
            run.spec.name,
            *_spread(run.query_ms),
            *_spread(run.batch_ms),
            f"{run.encode_ms:,.1f}",
            f"{run.hit_share:.1%}",
            f"{run.mb_a_query:,.1f}",
            f"{run.queries_per_s:,.1f}",
            f"{run.totals.held_bytes / 1e6:,.0f}",
        )
    return table


def _spread(found: Spread | None) -> tuple[str, str, str]:
    return (
        ("-", "-", "-")
        if found is None
        else (f"{found.mean:,.1f}", f"{found.p50:,.1f}", f"{found.p99:,.1f}")
    )


def _overlap_table(report: FigureReport) -> Table:
    table = Table(title="Figure 1: overlap of the clusters of two questions, Jaccard")
    for name in (
        "questions",
        "adjacent",
        "any two",
        "best of 99 others",
        "with a best over 60 %",
        "1 and 10",
    ):
        table.add_column(name, justify="left" if name == "questions" else "right")
    for overlap in report.overlaps:
        table.add_row(
            overlap.dataset,
            f"{overlap.adjacent:.1%}",
            f"{overlap.any_pair:.1%}",
            f"{overlap.best:.1%}",
            f"{overlap.over_60:.1%}",
            f"{overlap.shown[0][9]:.1%}",
        )
    return table

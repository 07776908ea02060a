"""The report of `carpool bench search`: one JSON with all that a figure depends on, and a table for
people.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.core.machine import DataFile, Machine, Revision
from bench.core.spread import Range
from bench.retrieval.cells import Cell, Line
from bench.retrieval.questions import QuestionFile
from bench.retrieval.summary import Row, Summary
from carpool.errors import ConfigError

SCHEMA_VERSION = 1
REPORT_NAME = "report.json"
MB = 1e6
HELD_TO_STATIC = "carpool"
"""The contestant that a promise compares with the best fixed set, on wish."""
MEASURED_OR_SPENT = ("ok", "out of memory", "timed out")


class IndexSearched(msgspec.Struct, frozen=True, kw_only=True):
    """An index of a run. `seeds`: those that it stands for; `budget_bytes`: what a process was
    limited to, or what its cache was, and what the static oracle kept (None: in other reports).
    """

    dir_name: str
    seeds: tuple[int, ...]
    index_version: str
    format: str
    row_count: int
    dimension: int
    nlist: int
    vectors_bytes: int
    clusters_bytes: int
    budget_bytes: int | None = None
    embedding_model: str


class SearchReport(msgspec.Struct, frozen=True, kw_only=True):
    """A run and where it ran. `is_memory_held`: whether the kernel held every contestant to its
    limit. `revision`: of the source when it ended; each cell has its own, and `revisions` all of
    them, of which there should be one.
    """

    schema_version: int
    benchmark: str
    command: list[str]
    started: str
    duration_s: float
    machine: Machine
    revision: Revision | None
    revisions: tuple[str, ...]
    data: tuple[DataFile, ...]
    questions: tuple[QuestionFile, ...]
    indexes: tuple[IndexSearched, ...]
    settings: dict[str, Any]
    is_memory_held: bool
    promises: dict[str, bool]
    summary: Summary
    lines: list[Line]

    @property
    def holds(self) -> bool:
        """Whether every promise held."""
        return all(self.promises.values())


def promises_of(
    summary: Summary, lines: Sequence[Line], static_max: float | None = None
) -> dict[str, bool]:
    """Returns what a run promises, and whether it held. Want of memory or time breaks nothing: it
    is a result, as long as there is another one.

    `static_max`: `carpool` reads at most so many times the static oracle's bytes, the median of the
    seeds at each window size; there it must have results.
    """
    measured = [row for row in summary.rows if not row.is_computed]
    cells = [line for line in lines if isinstance(line, Cell)]
    promises = {
        "bytes by the kernel agree within 2 % or 4 MiB with the own count of each contestant that "
        "counts": all(row.bytes_agree for row in measured),
        "ids of exact contestants equal FAISS IVF-Flat's, but for equal scores": all(
            row.agreement is None or row.agreement["different"] == 0 for row in measured
        ),
        "no contestant failed, but for want of memory or time": not any(
            cell.is_bug or cell.status not in MEASURED_OR_SPENT for cell in cells
        ),
        "something was measured": any(cell.status == "ok" for cell in cells),
    }
    for row in measured:
        if static_max is not None and row.contestant == HELD_TO_STATIC:
            ratio = row.to_oracles.get("oracle-static", {}).get("bytes_read")
            found = "no result" if ratio is None else _range(ratio, 1, 3)
            text = (
                f"{row.contestant} reads {found} times the best fixed set's bytes, at most "
                f"{static_max:g}"
            )
            promises[f"windows of {row.window}: {text}"] = (
                ratio is not None and ratio.median <= static_max
            )
    return promises


def write_json(report: SearchReport, path: Path) -> None:
    """Writes the report. Raises `ConfigError` where it cannot be written."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; give another --out") from error


def print_summary(console: Console, summary: Summary) -> None:
    """Prints two tables for each window size: medians over seeds, with the range where there are
    several.
    """
    for window in dict.fromkeys(row.window for row in summary.rows):
        rows = [row for row in summary.rows if row.window == window]
        disk, spread = summary.disk_bytes_per_s.get(window), summary.spread_bytes_per_s.get(window)
        titles = {
            "speed": f"Windows of {window}: cold, closed loop",
            "bytes": f"Windows of {window}: bytes"
            + (f"; the disk reads {_range(disk, 1e9, 2)} GB/s" if disk else "")
            + (f", {_range(spread, 1e9, 2)} into as much memory as the cache" if spread else ""),
        }
        for kind, columns in (("speed", speed_columns), ("bytes", bytes_columns)):
            table = Table(title=titles[kind])
            for heading in columns(rows[0]):
                is_name = heading == "contestant"
                table.add_column(
                    heading, justify="left" if is_name else "right", no_wrap=True, overflow="fold"
                )
            for row in rows:
                table.add_row(*columns(row).values(), style="dim" if row.is_computed else "")
            console.print(table)
        for row in rows:
            for failure in row.failures:
                console.print(
                    f"{row.contestant}, {failure}",
                    style="yellow",
                    markup=False,
                    highlight=False,
                    soft_wrap=True,
                )
    console.print(
        f"x: against {summary.baseline}, paired by seed. [lowest, highest] over seeds. computed: "
        "nothing was read",
        style="dim",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def speed_columns(row: Row) -> dict[str, str]:
    """Returns heading and cell of the first table."""
    figures = row.figures
    return {
        "contestant": _name(row),
        "queries/s": _range(figures.get("queries_per_s"), 1, 1),
        "x": _range(row.to_baseline.get("queries_per_s"), 1, 2),
        "p50 ms": _middle(figures.get("p50_ms")),
        "p99 ms": _middle(figures.get("p99_ms")),
        "held/s": held_rate(row),
        "first s": _middle(figures.get("first_answer_s")),
        "CPU ms": _middle(figures.get("cpu_ms_a_query")),
        "same, tied, differ": _exact(row),
    }


def bytes_columns(row: Row) -> dict[str, str]:
    """Returns heading and cell of the second table."""
    figures = row.figures
    shares = [
        _range(figures.get(name), 0.01, 0)
        for name in ("disk_share", "disk_share_busy", "disk_share_spread")
    ]
    return {
        "contestant": _name(row),
        "MB a query": _range(figures.get("bytes_a_query"), MB, 2),
        "x": _range(row.to_baseline.get("bytes_read"), 1, 2),
        "x window": _range(row.to_oracles.get("oracle-window", {}).get("bytes_read"), 1, 2),
        "x static": _range(row.to_oracles.get("oracle-static", {}).get("bytes_read"), 1, 2),
        "own count": _own_count(row),
        "disk %": shares[0],
        "busy %": shares[1],
        "spread %": shares[2],
        "loading MB": _range(figures.get("loading_bytes"), MB, 0),
        "peak MB": _range(figures.get("peak_bytes"), MB, 0),
    }


def remarks(report: SearchReport) -> list[str]:
    """Returns what a reader of the tables must know besides: questions left out or asked again, and
    more than one revision.
    """
    found = []
    if left_out := sum(file.left_out for file in report.questions):
        names = ", ".join(
            f"{file.left_out} of {file.name}" for file in report.questions if file.left_out
        )
        found.append(
            f"never asked, since grown sets were fitted with them: {left_out} questions ({names})"
        )
    opened = [
        line.measured.open_loop for line in report.lines if isinstance(line, Cell) and line.measured
    ]
    tries = [tried for loop in opened if loop is not None for tried in loop.tries]
    if again := sum(tried.reused > 0 for tried in tries):
        found.append(
            f"{again} of {len(tries)} rates of the open loop asked questions that the closed loop "
            "or an earlier rate had asked: "
            "nobody keeps results, but clusters may be warm. A larger file of questions avoids it"
        )
    if len(report.revisions) > 1:
        found.append(
            f"CELLS COME FROM {len(report.revisions)} REVISIONS OF THE SOURCE "
            f"({', '.join(report.revisions)}): ratios between them compare code, too"
        )
        found += [
            f"windows of {row.window}, {row.contestant}: {', '.join(row.revisions)}"
            for row in report.summary.rows
            if row.revisions
        ]
    elif any("modified" in revision for revision in report.revisions):
        found.append(f"the source differed from its commit: {report.revisions[0]}")
    return found


def _name(row: Row) -> str:
    return row.contestant + (" (computed)" if row.is_computed else "")


def held_rate(row: Row) -> str:
    """Returns the highest rate that held the latency target, `below N` where none did, `-` where
    none was sought.
    """
    held, failed = row.figures.get("rate_held_per_s"), row.figures.get("rate_failed_per_s")
    if held is None:
        return "-"
    if not held.max and failed is not None:
        return f"below {failed.median:.3g}"
    return _range(held, 1, 0)


def _own_count(row: Row) -> str:
    if not row.bytes_agree:
        return "disagrees"
    if row.is_computed or not row.seeds:
        return "-"
    return "agrees" if row.counts_bytes else "not counted"


def _exact(row: Row) -> str:
    if row.agreement is None:
        return "-"
    same, tied, different = (row.agreement[verdict] for verdict in ("same", "tied", "different"))
    return f"{same}, {tied}, {different}"


def _middle(found: Range | None) -> str:
    return "-" if found is None else f"{found.median:,.1f}"


def _range(found: Range | None, unit: float, digits: int) -> str:
    if found is None:
        return "-"
    middle, low, high = (
        f"{value / unit:,.{digits}f}" for value in (found.median, found.min, found.max)
    )
    return middle if found.count == 1 or low == high else f"{middle} [{low}, {high}]"

"""Results, promises and the table of `carpool bench search`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.core.spread import Range, over_runs, paired_ratio
from bench.search.measure import ContestantFigures
from bench.search.processes import Status

MEASURED_OR_LIMITED = ("ok", "out of memory", "timed out")


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One contestant in one process.

    `recall` and `recall_at_probes`: the share of the best of all rows, and of the best rows of the
    probed clusters, that it found. `figures` is None where `status` is not `ok`.
    """

    seed: int
    window: int
    contestant: str
    status: Status
    error: str = ""
    is_bug: bool = False
    is_exact: bool = False
    duration_s: float = 0.0
    limit_bytes: int | None = None
    peak_bytes: int | None = None
    figures: ContestantFigures | None = None
    recall: float | None = None
    recall_at_probes: float | None = None


class SearchRow(msgspec.Struct, frozen=True, kw_only=True):
    """A contestant at a window size: figures over seeds. `failures`: a line for each other seed.

    `rate_ratio`: of queries a second to those of the first contestant, paired by seed.
    """

    window: int
    contestant: str
    figures: dict[str, Range]
    rate_ratio: Range | None
    failures: tuple[str, ...]


def _measured(get: Callable[[ContestantFigures], float]) -> Callable[[Cell], float | None]:
    return lambda cell: None if cell.figures is None else get(cell.figures)


class Figure(NamedTuple):
    """A figure of a cell. `heading`, `unit` and `digits`: of its column."""

    heading: str
    get: Callable[[Cell], float | None]
    unit: float = 1
    digits: int = 1


FIGURES = {
    "queries_per_s": Figure("queries/s", _measured(lambda found: found.queries_per_s)),
    "p50_ms": Figure("p50 ms", _measured(lambda found: found.latency_ms.p50)),
    "p99_ms": Figure("p99 ms", _measured(lambda found: found.latency_ms.p99)),
    "recall": Figure("recall", lambda cell: cell.recall, digits=4),
    "recall_at_probes": Figure("at probes", lambda cell: cell.recall_at_probes, digits=4),
    "bytes_a_query": Figure("MB a query", _measured(lambda f: f.read_bytes / f.queries), 1e6, 2),
    "loading_bytes": Figure("loading MB", _measured(lambda found: found.loading_bytes), 1e6, 0),
    "first_answer_s": Figure("first s", _measured(lambda found: found.first_answer_us / 1e6)),
    "peak_bytes": Figure("peak MB", lambda cell: cell.peak_bytes, 1e6, 0),
}
"""Every figure of a cell, by its name in the JSON."""


def rows_of(
    cells: Sequence[Cell], windows: Sequence[int], contestants: Sequence[str]
) -> list[SearchRow]:
    """Returns a row for each window size and contestant that has cells, in this order. Pure."""
    rows = []
    for window in windows:
        rates: dict[str, dict[int, float]] = {}
        for name in contestants:
            mine = [cell for cell in cells if (cell.window, cell.contestant) == (window, name)]
            if not mine:
                continue
            values = {name: _by_seed(mine, figure.get) for name, figure in FIGURES.items()}
            rates[name] = values["queries_per_s"]
            ranges = {figure: over_runs(each.values()) for figure, each in values.items()}
            rows.append(
                SearchRow(
                    window=window,
                    contestant=name,
                    figures={figure: found for figure, found in ranges.items() if found},
                    rate_ratio=paired_ratio(rates[name], rates.get(contestants[0], {})),
                    failures=tuple(
                        f"seed {cell.seed}: {cell.status}: {cell.error}"
                        for cell in mine
                        if cell.status != "ok"
                    ),
                )
            )
    return rows


def _by_seed(cells: Sequence[Cell], get: Callable[[Cell], float | None]) -> dict[int, float]:
    values = {cell.seed: get(cell) for cell in cells}
    return {seed: value for seed, value in values.items() if value is not None}


def promises_of(cells: Sequence[Cell]) -> dict[str, bool]:
    """Returns the promises of a run, and whether each was kept. Pure.

    Running out of memory or time breaks none: it is a result, as long as there is another one.
    """
    return {
        "bytes by the kernel agree within 2 % or 16 MiB with the own count of each contestant that "
        "counts": all(cell.figures is None or cell.figures.bytes_agree for cell in cells),
        "exact contestants find the best rows of the probed clusters, but for equal scores": all(
            cell.recall_at_probes == 1 for cell in cells if cell.is_exact and cell.status == "ok"
        ),
        "no contestant failed, but for lack of memory or time": not any(
            cell.is_bug or cell.status not in MEASURED_OR_LIMITED for cell in cells
        ),
        "something was measured": any(cell.status == "ok" for cell in cells),
    }


def print_tables(console: Console, found: Sequence[SearchRow]) -> None:
    """Prints a table for each window size: medians over seeds, of the rates with their range."""
    for window in dict.fromkeys(row.window for row in found):
        table = Table(title=f"Windows of {window}: cold, closed loop")
        table.add_column("contestant", no_wrap=True)
        for heading in ("x", *(figure.heading for figure in FIGURES.values())):
            table.add_column(heading, justify="right", no_wrap=True)
        rows = [row for row in found if row.window == window]
        for row in rows:
            ratio = _range(row.rate_ratio, 2) if row.rate_ratio else "-"
            table.add_row(row.contestant, ratio, *(_shown(row, name) for name in FIGURES))
        console.print(table)
        for row in rows:
            for failure in row.failures:
                text = Text(f"{row.contestant}, {failure}", "yellow")
                console.print(text, soft_wrap=True)
    console.print(
        "x: queries a second against the first contestant, paired by seed. [lowest, highest]: over "
        "seeds. recall: against all rows; at probes: an exact search of the same clusters",
        style="dim",
        soft_wrap=True,
    )


def cell_line(cell: Cell) -> str:
    """Returns a cell in one line."""
    head = f"seed {cell.seed}, windows of {cell.window}, {cell.contestant}: "
    if cell.figures is None:
        return f"{head}{cell.status}: {cell.error}"
    figures = cell.figures
    return (
        f"{head}{figures.queries_per_s:,.1f} queries/s, p99 {figures.latency_ms.p99:,.1f} ms, "
        f"{figures.read_bytes / figures.queries / 1e6:,.2f} MB a query, recall "
        f"{cell.recall:.4f}, at the probes {cell.recall_at_probes:.4f}"
        + ("" if figures.bytes_agree else ", BYTES DISAGREE")
    )


def _shown(row: SearchRow, name: str) -> str:
    figure, found = FIGURES[name], row.figures.get(name)
    if found is None:
        return "-"
    if name == "queries_per_s":
        return _range(found, figure.digits)
    return f"{found.median / figure.unit:,.{figure.digits}f}"


def _range(found: Range, digits: int) -> str:
    middle, low, high = (f"{value:,.{digits}f}" for value in (found.median, found.min, found.max))
    return middle if found.count == 1 or low == high else f"{middle} [{low}, {high}]"

"""Promises and tables of `carpool bench search`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from rich.console import Console
from rich.table import Table

from bench.baselines.registry import ENTRIES
from bench.core.report import IndexFacts
from bench.core.spread import Range
from bench.retrieval.cells import Cell, SearchCells
from bench.retrieval.plan import SearchPlan
from bench.retrieval.summary import SearchRow, SearchSummary
from carpool.terminal import TerminalConsole

MB = 1e6
MEASURED_OR_LIMITED = ("ok", "out of memory", "timed out")


class SearchResults(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a report.

    `budgets_bytes`: for each index the limit, which is also what the static oracle kept.
    `left_out`: questions that were never asked.
    """

    is_memory_limited: bool
    left_out: int
    indexes: tuple[IndexFacts, ...]
    budgets_bytes: tuple[int, ...]
    summary: SearchSummary
    cells: SearchCells


def list_contestants() -> None:
    """Prints the contestants."""
    table = Table("contestant", "ids", "--memory", "--cache", "what it is", title="Contestants")
    for entry in ENTRIES.values():
        table.add_row(
            entry.name,
            "exact" if entry.is_exact else "approximate",
            "limited" if entry.is_limited else "no limit",
            "limited" if entry.has_cache_budget else "takes no part",
            entry.summary,
        )
    TerminalConsole().print(table)


def promises_of(summary: SearchSummary, cells: Sequence[Cell]) -> dict[str, bool]:
    """Returns the promises of a run, and whether each was kept.

    Running out of memory or time breaks none: it is a result, as long as there is another one.
    """
    measured = [row for row in summary.rows if not row.is_computed]
    return {
        "bytes by the kernel agree within 2 % or 16 MiB with the own count of each contestant that "
        "counts": all(row.bytes_agree for row in measured),
        "ids of exact contestants equal FAISS IVF-Flat's, but for equal scores": all(
            row.agreement is None or row.agreement["different"] == 0 for row in measured
        ),
        "no contestant failed, but for lack of memory or time": not any(
            cell.is_bug or cell.status not in MEASURED_OR_LIMITED for cell in cells
        ),
        "something was measured": any(cell.status == "ok" for cell in cells),
    }


def print_summary(console: Console, summary: SearchSummary, hour_price: float) -> None:
    """Prints two tables for each window size: medians over seeds, with the range."""
    for window in dict.fromkeys(row.window for row in summary.rows):
        rows = [row for row in summary.rows if row.window == window]
        disk = summary.disk_bytes_per_s.get(window)
        disk_words = f"; the disk reads {_range(disk, 1e9, 2)} GB/s" if disk else ""
        for title, columns in (
            (
                f"Windows of {window}: cold, closed loop",
                partial(speed_columns, hour_price=hour_price),
            ),
            (f"Windows of {window}: bytes{disk_words}", bytes_columns),
        ):
            table = Table(title=title)
            for heading in columns(rows[0]):
                is_name = heading == "contestant"
                table.add_column(heading, justify="left" if is_name else "right", no_wrap=True)
            for row in rows:
                table.add_row(*columns(row).values(), style="dim" if row.is_computed else "")
            console.print(table)
        for row in rows:
            for failure in row.failures:
                _line(console, f"{row.contestant}, {failure}", "yellow")
    _line(
        console,
        f"x: against {summary.baseline}, paired by seed, only where as much is found in the same "
        "probed clusters (within 0.002). [lowest, highest] over seeds. recall: against all rows; "
        "at probes: against an exact search of the same clusters. computed: nothing was read. "
        f"$/million: questions at full load, for ${hour_price:g} an hour",
        "dim",
    )


def print_remarks(console: Console, results: SearchResults, plan: SearchPlan) -> None:
    """Prints the conditions of the run that the tables do not show."""
    if not results.is_memory_limited:
        if plan.cache_share is None:
            text = "no process was limited: contestants took any memory (--memory-held-by none)"
        else:
            budgets = {f"{budget_bytes / 1e6:,.1f} MB" for budget_bytes in results.budgets_bytes}
            text = (
                "no process was limited: each cache, reads in flight included, had "
                f"{plan.cache_share:.1%} of the clusters' bytes ({', '.join(sorted(budgets))})"
            )
        _line(console, text, "yellow")
    if len(plan.indexes) == 1 and plan.seeds > 1:
        _line(
            console,
            "seeds differ in the order of arrival only: give --index once for each seed to vary "
            "data and training",
            "yellow",
        )
    if results.left_out:
        _line(
            console,
            f"never asked, because they chose the spread of grown sets: {results.left_out} "
            "questions",
            "yellow",
        )


def speed_columns(row: SearchRow, hour_price: float) -> dict[str, str]:
    """Returns heading and cell of the first table. `hour_price`: dollars for the machine."""
    figures = row.figures
    return {
        "contestant": _name(row),
        "queries/s": _range(figures.get("queries_per_s"), 1, 1),
        "x": _range(row.to_baseline.get("queries_per_s"), 1, 2),
        "p50 ms": _median(figures.get("p50_ms")),
        "p99 ms": _median(figures.get("p99_ms")),
        "first s": _median(figures.get("first_answer_s")),
        "recall": _range(figures.get("recall"), 1, 4),
        "at probes": _range(figures.get("recall_at_probes"), 1, 4),
        "$/million": _dollars(figures.get("queries_per_s"), hour_price),
        "same, tied, differ": _verdicts(row),
    }


def _dollars(rate: Range | None, hour_price: float) -> str:
    """What a million questions cost at full load."""
    return "-" if rate is None else f"{hour_price / (rate.median * 3600) * 1e6:,.3f}"


def bytes_columns(row: SearchRow) -> dict[str, str]:
    """Returns heading and cell of the second table."""
    figures = row.figures
    return {
        "contestant": _name(row),
        "MB a query": _range(figures.get("bytes_a_query"), MB, 2),
        "x": _range(row.to_baseline.get("bytes_read"), 1, 2),
        "x window": _range(row.to_oracles.get("oracle-window"), 1, 2),
        "x static": _range(row.to_oracles.get("oracle-static"), 1, 2),
        "own count": _own_count(row),
        "disk %": _range(figures.get("disk_share"), 0.01, 0),
        "busy %": _range(figures.get("disk_share_busy"), 0.01, 0),
        "loading MB": _range(figures.get("loading_bytes"), MB, 0),
        "peak MB": _range(figures.get("peak_bytes"), MB, 0),
    }


def cell_line(cell: Cell) -> str:
    """Returns a cell in one line."""
    head = f"seed {cell.seed}, windows of {cell.window}, {cell.contestant}: "
    if cell.figures is None:
        return f"{head}{cell.status}: {cell.error}"
    figures = cell.figures
    words = [
        f"{figures.queries_per_s:,.1f} queries/s",
        f"p99 {figures.latency_ms.p99:,.1f} ms",
        f"{figures.loop.kernel_read_bytes / figures.queries / 1e6:,.2f} MB a query",
        f"first answer {figures.first_answer_us / 1e6:.1f} s",
    ]
    if cell.recall is not None and cell.recall_at_probes is not None:
        words.append(f"recall {cell.recall:.4f}, at the probes {cell.recall_at_probes:.4f}")
    if cell.agreement is not None:
        counts = cell.agreement
        words.append(f"{counts.same} same, {counts.tied} tied, {counts.different} different")
    if not cell.bytes_agree:
        words.append("BYTES DISAGREE")
    return head + ", ".join(words)


def _line(console: Console, text: str, style: str) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _name(row: SearchRow) -> str:
    return row.contestant + (" (computed)" if row.is_computed else "")


def _own_count(row: SearchRow) -> str:
    if not row.bytes_agree:
        return "disagrees"
    if row.is_computed or not row.seeds:
        return "-"
    return "agrees" if row.counts_bytes else "not counted"


def _verdicts(row: SearchRow) -> str:
    if row.agreement is None:
        return "-"
    return ", ".join(str(row.agreement[verdict]) for verdict in ("same", "tied", "different"))


def _median(found: Range | None) -> str:
    return "-" if found is None else f"{found.median:,.1f}"


def _range(found: Range | None, unit: float, digits: int) -> str:
    if found is None:
        return "-"
    middle, low, high = (
        f"{value / unit:,.{digits}f}" for value in (found.median, found.min, found.max)
    )
    return middle if found.count == 1 or low == high else f"{middle} [{low}, {high}]"

"""Results and promises of `carpool bench search`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from bench.core.spread import Range, over_runs
from bench.search.processes import ChildEnd


class Cell(ChildEnd, frozen=True, kw_only=True):
    """One contestant in one process, and how it ended.

    `recall` and `recall_at_probes`: the share of the best of all rows, and of the best rows of the
    probed clusters, that it found; 0 where it did not end well.
    """

    seed: int
    window: int
    contestant: str
    is_exact: bool = False
    limit_bytes: int | None = None
    recall: float = 0.0
    recall_at_probes: float = 0.0


class SearchFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A contestant at a window size: medians over seeds. `peak_mb`: None where not counted."""

    queries_per_s: Range
    p50_ms: float
    p99_ms: float
    recall: float
    recall_at_probes: float
    mb_a_query: float
    peak_mb: float | None


def figures_of(cells: Sequence[Cell]) -> SearchFigures | None:
    """Returns the figures of a contestant at a window size; None where no cell ended well. Pure."""
    figures = [cell.figures for cell in cells if cell.figures is not None]
    done = [cell for cell in cells if cell.figures is not None]
    rates = over_runs(each.queries_per_s for each in figures)
    if rates is None:
        return None
    peaks = [cell.peak_bytes for cell in done if cell.peak_bytes is not None]
    return SearchFigures(
        queries_per_s=rates,
        p50_ms=median(each.latency_ms.p50 for each in figures),
        p99_ms=median(each.latency_ms.p99 for each in figures),
        recall=median(cell.recall for cell in done),
        recall_at_probes=median(cell.recall_at_probes for cell in done),
        mb_a_query=median(each.read_bytes / each.queries for each in figures) / 1e6,
        peak_mb=median(peaks) / 1e6 if peaks else None,
    )


def rows_of(cells: Sequence[Cell]) -> dict[str, dict[str, SearchFigures | None]]:
    """Returns the figures of each contestant, by window size and name. Pure."""
    found: dict[str, dict[str, SearchFigures | None]] = {}
    for window in dict.fromkeys(cell.window for cell in cells):
        some = [cell for cell in cells if cell.window == window]
        found[f"windows of {window}"] = {
            name: figures_of([cell for cell in some if cell.contestant == name])
            for name in sorted({cell.contestant for cell in some})
        }
    return found


def promises_of(cells: Sequence[Cell]) -> dict[str, bool]:
    """Returns the promises of a run, and whether each was kept. Pure.

    Running out of memory or time breaks none: it is a result, as long as there is another one.
    """
    measured = [cell for cell in cells if cell.status == "ok"]
    return {
        "exact contestants find the best rows of the probed clusters, but for equal scores": all(
            cell.recall_at_probes == 1 for cell in measured if cell.is_exact
        ),
        "no contestant failed, but for lack of memory or time": all(
            cell.status != "failed" for cell in cells
        ),
        "something was measured": bool(measured),
    }


def cell_line(cell: Cell) -> str:
    """Returns a cell in one line."""
    head = f"seed {cell.seed}, windows of {cell.window}, {cell.contestant}: "
    if cell.figures is None:
        return f"{head}{cell.status}: {cell.error}"
    return (
        f"{head}{cell.figures.queries_per_s:,.1f} queries/s, p99 "
        f"{cell.figures.latency_ms.p99:,.1f} ms, recall {cell.recall:.4f}, at the probes "
        f"{cell.recall_at_probes:.4f}"
    )

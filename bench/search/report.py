"""Results and promises of `carpool bench search`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.search.child import ContestantFigures, TunedFigures
from bench.search.processes import ChildEnd

BUILD, WINDOWS, CLIENTS, ALONE = "build", "windows of 100", "16 clients", "alone"
Row = dict[str, float | None]
"""Figures of a contestant; those that name no mode are of windows. None: not counted."""


class Cell(ChildEnd, frozen=True, kw_only=True):
    """One contestant in one process, and how it ended.

    `mode`: how it was asked; `BUILD`: it was built, and its settings were searched for. `recalls`:
    those that `setting` was chosen for. `at_probes`: the share of the ids of `carpool-exact` at the
    same setting; `promised`: the least share that is promised. None: not compared.
    """

    contestant: str
    mode: str
    setting: int | None = None
    recalls: tuple[float, ...] = ()
    limit_bytes: int | None = None
    recall: float = 0.0
    promised: float | None = None
    at_probes: float | None = None


def rows_of(cells: Sequence[Cell], recalls: Sequence[float]) -> dict[str, dict[str, Row]]:
    """Returns the figures of each contestant, by the recall that it was to reach and its name.

    One that did not reach it, or did not end well in each mode, has none.
    """
    found: dict[str, dict[str, Row]] = {}
    for recall in recalls:
        rows = found[f"recall {recall}"] = {}
        for name in sorted({cell.contestant for cell in cells}):
            own = [cell for cell in cells if cell.contestant == name and cell.figures]
            chosen = {cell.mode: cell for cell in own if recall in cell.recalls}
            built = [cell.figures.build_s for cell in own if isinstance(cell.figures, TunedFigures)]
            if chosen.keys() == {WINDOWS, CLIENTS, ALONE}:
                rows[name] = row_of(chosen) | {"build_s": built[0] if built else None}
    return found


def row_of(cells: Mapping[str, Cell]) -> Row:
    """Returns the figures of a contestant at its setting, but for its build. `cells`: by mode."""
    measured = {
        mode: cell.figures
        for mode, cell in cells.items()
        if isinstance(cell.figures, ContestantFigures)
    }
    windows, alone = measured[WINDOWS], measured[ALONE]
    return {
        "setting": cells[WINDOWS].setting,
        "recall": cells[WINDOWS].recall,
        "queries_per_s": windows.queries_per_s,
        "by_16_clients": measured[CLIENTS].queries_per_s,
        "p50_alone_ms": alone.latency_ms.p50,
        "p99_alone_ms": alone.latency_ms.p99,
        "cpu_ms": windows.cpu_us / windows.queries / 1e3,
        "cpu_alone_ms": alone.cpu_us / alone.queries / 1e3,
        "mb_read": windows.read_bytes / windows.queries / 1e6,
        "peak_mb": windows.peak_bytes and windows.peak_bytes / 1e6,
    }


def promises_of(cells: Sequence[Cell]) -> dict[str, bool]:
    """Returns the promises of a run, and whether each was kept.

    Running out of memory or time breaks none: it is a result, as long as there is another one.
    """
    return {
        "no contestant failed, but for lack of memory or time": all(
            cell.status != "failed" for cell in cells
        ),
        "carpool finds the share of an exact search's ids that it promises": all(
            cell.at_probes >= cell.promised
            for cell in cells
            if cell.at_probes is not None and cell.promised is not None
        ),
        "something was measured": any(
            isinstance(cell.figures, ContestantFigures) for cell in cells
        ),
    }


def cell_line(cell: Cell) -> str:
    head = f"{cell.contestant}, {cell.mode}: "
    match cell.figures:
        case ContestantFigures() as figures:
            return (
                f"{head}setting {cell.setting}, {figures.queries_per_s:,.1f} queries/s, p99 "
                f"{figures.latency_ms.p99:,.1f} ms, recall {cell.recall:.4f}"
                + (f", {cell.at_probes:.5f} of an exact search" if cell.at_probes else "")
            )
        case TunedFigures() as figures:
            settings = ", ".join(map(str, figures.settings))
            return f"{head}settings {settings}; the highest one finds {figures.most:.4f}"
        case _:
            return f"{head}{cell.status}: {cell.error}"

"""Results and promises of `carpool bench search`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from bench.search.child import ContestantFigures, TunedFigures
from bench.search.processes import ChildEnd

BUILD, WINDOWS, CLIENTS, ALONE = "build", "windows of 100", "16 clients", "alone"


Row = dict[str, float | None]


class Cell(ChildEnd, frozen=True, kw_only=True):
    """One contestant in one process, and how it ended.

    `mode`: how it was asked; `BUILD`: it was built, and its settings were searched for. `recalls`:
    those that `setting` was chosen for. `at_probes`: the share of the ids of `carpool-exact` at the
    same setting; `promised`: the least share that is promised. None: not compared.
    """

    seed: int
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
            chosen = [cell for cell in own if recall in cell.recalls]
            if {cell.mode for cell in chosen} == {WINDOWS, CLIENTS, ALONE}:
                rows[name] = row_of(chosen, [cell for cell in own if cell.mode == BUILD])
    return found


def row_of(cells: Sequence[Cell], builds: Sequence[Cell]) -> Row:
    """Returns the figures of a contestant at its settings: medians over seeds.

    Those that name no mode are of windows. CPU time is of the process, for a query. None: not
    counted.
    """

    def of(mode: str, figure: Callable[[ContestantFigures], float | None]) -> float | None:
        figures = [cell.figures for cell in cells if cell.mode == mode]
        found = [figure(one) for one in figures if isinstance(one, ContestantFigures)]
        return median(each for each in found if each is not None) if None not in found else None

    times = [one.figures.build_s for one in builds if isinstance(one.figures, TunedFigures)]
    return {
        "setting": median(cell.setting or 0 for cell in cells),
        "recall": median(cell.recall for cell in cells),
        "queries_per_s": of(WINDOWS, lambda one: one.queries_per_s),
        "by_16_clients": of(CLIENTS, lambda one: one.queries_per_s),
        "p50_alone_ms": of(ALONE, lambda one: one.latency_ms.p50),
        "p99_alone_ms": of(ALONE, lambda one: one.latency_ms.p99),
        "cpu_ms": of(WINDOWS, lambda one: one.cpu_us / one.queries / 1e3),
        "cpu_alone_ms": of(ALONE, lambda one: one.cpu_us / one.queries / 1e3),
        "mb_read": of(WINDOWS, lambda one: one.read_bytes / one.queries / 1e6),
        "peak_mb": of(WINDOWS, lambda one: one.peak_bytes and one.peak_bytes / 1e6),
        "build_s": None if None in times or not times else median(time or 0 for time in times),
    }


def by_figure(rows: Mapping[str, Row]) -> dict[str, Row]:
    """Returns the figures as columns of a table, by contestant."""
    figures = dict.fromkeys(figure for row in rows.values() for figure in row)
    return {
        figure.replace("_", " "): {name: row[figure] for name, row in rows.items()}
        for figure in figures
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
    """Returns a cell in one line."""
    head = f"seed {cell.seed}, {cell.contestant}, {cell.mode}: "
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

"""Results and promises of `carpool bench search`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from bench.search.child import ContestantFigures, TunedFigures
from bench.search.processes import ChildEnd

BUILD, WINDOWS, CLIENTS, ALONE = "build", "windows of 100", "16 clients", "alone"


class Cell(ChildEnd, frozen=True, kw_only=True):
    """One contestant in one process, and how it ended.

    `mode`: how it was asked; `BUILD`: it was built, and its settings were searched for.
    """

    seed: int
    contestant: str
    mode: str
    setting: int | None = None
    limit_bytes: int | None = None
    recall: float = 0.0


class SearchFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A contestant at its settings for a recall: medians over seeds.

    Without a name: in windows. CPU time is of the process, for a query. `peak_mb`: None where not
    counted.
    """

    setting: float
    recall: float
    queries_per_s: float
    by_16_clients: float
    p50_alone_ms: float
    p99_alone_ms: float
    cpu_ms: float
    cpu_alone_ms: float
    mb_read: float
    peak_mb: float | None
    build_s: float | None


def settings_of(cells: Sequence[Cell], at: int) -> dict[tuple[int, str], int]:
    """Returns the settings that reach the recall number `at`, by seed and contestant."""
    found = {}
    for cell in cells:
        setting = cell.figures.settings[at] if isinstance(cell.figures, TunedFigures) else None
        if setting is not None:
            found[cell.seed, cell.contestant] = setting
    return found


def rows_of(
    cells: Sequence[Cell], recalls: Sequence[float]
) -> dict[str, dict[str, SearchFigures | None]]:
    """Returns the figures of each contestant, by the recall that it was to reach and its name.

    None: it did not reach it, or did not end well.
    """
    names = sorted({cell.contestant for cell in cells})
    found = {}
    for at, recall in enumerate(recalls):
        settings = settings_of(cells, at)
        found[f"recall {recall}"] = {
            name: figures_of(
                [one for one in cells if one.contestant == name and one.mode == BUILD],
                [
                    one
                    for one in cells
                    if one.contestant == name
                    and one.setting is not None
                    and settings.get((one.seed, name)) == one.setting
                ],
            )
            for name in names
        }
    return found


def figures_of(builds: Sequence[Cell], cells: Sequence[Cell]) -> SearchFigures | None:
    """Returns the figures of a contestant at its settings; None where a mode never ended well."""
    done = [cell for cell in cells if cell.figures]

    def of(mode: str, figure: Callable[[ContestantFigures], float]) -> float:
        figures = [cell.figures for cell in done if cell.mode == mode]
        return median(figure(one) for one in figures if isinstance(one, ContestantFigures))

    def cpu_ms(figures: ContestantFigures) -> float:
        return figures.cpu_us / figures.queries / 1e3

    if {cell.mode for cell in done} != {WINDOWS, CLIENTS, ALONE}:
        return None
    peaks = [
        cell.figures.peak_bytes / 1e6
        for cell in done
        if cell.mode == WINDOWS
        and isinstance(cell.figures, ContestantFigures)
        and cell.figures.peak_bytes is not None
    ]
    tuned = [cell.figures for cell in builds if isinstance(cell.figures, TunedFigures)]
    times = [each.build_s for each in tuned if each.build_s is not None]
    return SearchFigures(
        setting=median(cell.setting for cell in done if cell.setting is not None),
        recall=median(cell.recall for cell in done),
        queries_per_s=of(WINDOWS, lambda one: one.queries_per_s),
        by_16_clients=of(CLIENTS, lambda one: one.queries_per_s),
        p50_alone_ms=of(ALONE, lambda one: one.latency_ms.p50),
        p99_alone_ms=of(ALONE, lambda one: one.latency_ms.p99),
        cpu_ms=of(WINDOWS, cpu_ms),
        cpu_alone_ms=of(ALONE, cpu_ms),
        mb_read=of(WINDOWS, lambda one: one.read_bytes / one.queries) / 1e6,
        peak_mb=median(peaks) if peaks else None,
        build_s=median(times) if times else None,
    )


def by_figure(rows: Mapping[str, SearchFigures | None]) -> dict[str, dict[str, Any]]:
    """Returns the figures as columns of a table, by contestant."""
    names = SearchFigures.__struct_fields__
    return {
        name.replace("_", " "): {who: getattr(figures, name, None) for who, figures in rows.items()}
        for name in names
    }


def promises_of(cells: Sequence[Cell]) -> dict[str, bool]:
    """Returns the promises of a run, and whether each was kept.

    Running out of memory or time breaks none: it is a result, as long as there is another one.
    """
    return {
        "no contestant failed, but for lack of memory or time": all(
            cell.status != "failed" for cell in cells
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
            )
        case TunedFigures() as figures:
            settings = ", ".join(map(str, figures.settings))
            return f"{head}settings {settings}; the highest one finds {figures.most:.4f}"
        case _:
            return f"{head}{cell.status}: {cell.error}"

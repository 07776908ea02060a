"""The rows and the promises of a run, from cells made by hand."""

from __future__ import annotations

import pytest
from msgspec import structs

from bench.core.spread import Spread
from bench.search.child import ContestantFigures, TunedFigures
from bench.search.processes import Status
from bench.search.report import (
    ALONE,
    BUILD,
    CLIENTS,
    WINDOWS,
    Cell,
    cell_line,
    promises_of,
    rows_of,
)


def built(*settings: int | None) -> Cell:
    figures = TunedFigures(build_s=2.0, settings=settings, most=0.97)
    return Cell(contestant="ours", mode=BUILD, status="ok", figures=figures)


def cell(setting: int, mode: str, rate: int = 100, reached: float = 0.95) -> Cell:
    return Cell(
        contestant="ours",
        mode=mode,
        setting=setting,
        recalls=(reached,),
        status="ok",
        recall=0.96,
        figures=ContestantFigures(
            queries=rate,
            latency_ms=Spread(count=rate, mean=2.0, p50=2.0, p99=9.0, max=10.0),
            duration_us=1_000_000,
            cpu_us=4_000 * rate,
            read_bytes=1_000_000 * rate,
            peak_bytes=5_000_000,
        ),
    )


def ended(status: Status) -> Cell:
    return Cell(contestant="ours", mode=ALONE, setting=1, status=status, error="killed")


MODES = (WINDOWS, CLIENTS, ALONE)
CELLS = [
    built(5, None),
    *(cell(5, mode) for mode in MODES),
    cell(9, WINDOWS, rate=9, reached=0.98),  # the other modes are missing
]


def test_a_row_has_the_figures_of_the_setting_that_was_chosen() -> None:
    rows = rows_of(CELLS, (0.95, 0.98))
    row = rows["recall 0.95"]["ours"]
    assert (row["setting"], row["queries_per_s"], row["cpu_ms"]) == (5, 100, 4)
    assert (row["mb_read"], row["peak_mb"], row["build_s"]) == (1, 5, 2)
    assert rows["recall 0.98"] == {}
    assert row["p99_alone_ms"] == 9


def test_each_end_of_a_cell_is_a_line() -> None:
    assert cell_line(CELLS[0]).endswith("build: settings 5, None; the highest one finds 0.9700")
    assert "setting 5, 100.0 queries/s" in cell_line(CELLS[1])
    assert cell_line(ended("out of memory")).endswith("alone: out of memory: killed")


@pytest.mark.parametrize(
    ("cells", "kept"),
    [
        (CELLS, [True, True, True]),
        ([*CELLS, ended("failed")], [False, True, True]),
        ([*CELLS, structs.replace(CELLS[1], promised=0.998, at_probes=0.998)], [True, True, True]),
        ([*CELLS, structs.replace(CELLS[1], promised=0.998, at_probes=0.997)], [True, False, True]),
        ([CELLS[0], ended("out of memory")], [True, True, False]),
        ([ended("timed out"), *CELLS], [True, True, True]),
        ([], [True, True, False]),
    ],
)
def test_promises_break_when_one_fails_or_nothing_was_measured(
    cells: list[Cell], kept: list[bool]
) -> None:
    assert list(promises_of(cells).values()) == kept

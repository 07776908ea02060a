"""The rows and the promises of a run, from cells made by hand."""

from __future__ import annotations

import pytest

from bench.core.spread import Spread
from bench.search.child import ContestantFigures
from bench.search.processes import Status
from bench.search.report import Cell, cell_line, promises_of, rows_of


def cell(contestant: str, seed: int, *, rate: int = 100, recall: float = 1.0) -> Cell:
    figures = ContestantFigures(
        queries=rate,
        latency_ms=Spread(count=rate, mean=2.0, p50=2.0, p99=9.0, max=10.0),
        duration_us=1_000_000,
        read_bytes=1_000_000 * rate * (1 + seed),
    )
    return Cell(
        seed=seed,
        window=20,
        contestant=contestant,
        status="ok",
        figures=figures,
        is_exact=True,
        recall=0.5,
        recall_at_probes=recall,
    )


def ended(status: Status) -> Cell:
    return Cell(seed=2, window=20, contestant="ours", status=status, error="killed")


CELLS = [
    cell("base", 0, rate=50),
    cell("ours", 0, rate=200),
    cell("ours", 1, rate=300),
    ended("out of memory"),
]


def test_figures_are_medians_over_seeds_and_failures_are_lines() -> None:
    rows = rows_of(CELLS)["windows of 20"]
    base, ours = rows["base"], rows["ours"]
    assert base is not None and base.queries_per_s.median == 50
    assert ours is not None and ours.mb_a_query == 1.5 and ours.peak_mb is None
    rate = ours.queries_per_s
    assert (rate.min, rate.median, rate.max) == (200, 250, 300)
    assert rows_of(CELLS[-1:]) == {"windows of 20": {"ours": None}}
    assert cell_line(CELLS[-1]).endswith("ours: out of memory: killed")


@pytest.mark.parametrize(
    ("cells", "kept"),
    [
        (CELLS, [True, True, True]),
        ([cell("base", 0, recall=0.999)], [False, True, True]),
        ([CELLS[0], ended("failed")], [True, False, True]),
        ([ended("out of memory")], [True, True, False]),
        ([ended("timed out"), CELLS[0]], [True, True, True]),
        ([], [True, True, False]),
    ],
)
def test_promises_break_when_ids_differ_or_nothing_was_measured(
    cells: list[Cell], kept: list[bool]
) -> None:
    assert list(promises_of(cells).values()) == kept

"""The rows and the promises of a run, from cells made by hand."""

from __future__ import annotations

import pytest
from rich.console import Console

from bench.core.spread import Spread
from bench.search.measure import ContestantFigures
from bench.search.processes import Status
from bench.search.report import Cell, print_tables, promises_of, rows_of

SECOND_US = 1_000_000


def cell(
    contestant: str,
    seed: int,
    *,
    read_bytes: int = 1,
    rate: int = 100,
    own_bytes: int | None = None,
    recall: float = 1.0,
) -> Cell:
    figures = ContestantFigures(
        queries=rate,
        latency_ms=Spread(count=rate, mean=2.0, p50=2.0, p99=9.0, max=10.0),
        duration_us=SECOND_US,
        read_bytes=read_bytes,
        own_bytes=own_bytes,
        loading_bytes=1_000,
        first_answer_us=3 * SECOND_US,
    )
    return Cell(
        seed=seed,
        window=20,
        contestant=contestant,
        status="ok",
        is_exact=True,
        figures=figures,
        recall=0.5,
        recall_at_probes=recall,
    )


def ended(status: Status, *, is_bug: bool = False) -> Cell:
    return Cell(seed=2, window=20, contestant="ours", status=status, error="killed", is_bug=is_bug)


CELLS = [
    cell("base", 0, rate=50),
    cell("base", 1, rate=100),
    cell("ours", 0, rate=200, read_bytes=100_000_000),
    cell("ours", 1, rate=300, read_bytes=300_000_000),
    ended("out of memory"),
]


def test_figures_are_medians_over_seeds_and_ratios_are_paired() -> None:
    base, ours = rows_of(CELLS, [20], ["base", "ours", "absent"])
    assert ours.failures == ("seed 2: out of memory: killed",)
    assert ours.figures["queries_per_s"].median == 250
    assert ours.figures["bytes_a_query"].median == 750_000
    assert ours.rate_ratio is not None and (ours.rate_ratio.min, ours.rate_ratio.max) == (3, 4)
    assert base.rate_ratio is not None and base.rate_ratio.median == 1


@pytest.mark.parametrize(
    ("cells", "kept"),
    [
        (CELLS, [True, True, True, True]),
        ([cell("base", 0, read_bytes=10**8, own_bytes=8 * 10**7)], [False, True, True, True]),
        ([cell("base", 0, recall=0.999)], [True, False, True, True]),
        ([CELLS[0], ended("failed", is_bug=True)], [True, True, False, True]),
        ([ended("failed")], [True, True, False, False]),
        ([ended("out of memory")], [True, True, True, False]),
        ([ended("timed out"), CELLS[0]], [True, True, True, True]),
        ([], [True, True, True, False]),
    ],
)
def test_promises_break_when_bytes_or_ids_differ_or_nothing_was_measured(
    cells: list[Cell], kept: list[bool]
) -> None:
    assert list(promises_of(cells).values()) == kept


def test_the_table_shows_ranges_and_failures() -> None:
    console = Console(width=200, record=True)
    rows = rows_of(CELLS, [20], ["base", "ours"])
    print_tables(console, rows)
    text = console.export_text()
    for words in ("250.0 [200.0, 300.0]", "out of memory: killed", "3.50 [3.00, 4.00]"):
        assert words in text

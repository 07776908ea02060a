"""The summary and the promises of a run, from cells made by hand."""

from __future__ import annotations

import pytest
from rich.console import Console

from bench.baselines.contestant import ContestantCounters
from bench.core.agreement import Agreement
from bench.core.spread import Spread
from bench.micro.disk import DiskRate
from bench.retrieval.cells import Cell, DiskBlock, OracleCell, SearchCells
from bench.retrieval.measure import ContestantFigures, Usage
from bench.retrieval.oracles import OracleBytes
from bench.retrieval.processes import Status
from bench.retrieval.report import print_summary, promises_of
from bench.retrieval.summary import SearchSummary, disk_rate, summarise

SECOND_US = 1_000_000


def usage(read_bytes: int, own_bytes: int | None = None) -> Usage:
    return Usage(
        duration_us=SECOND_US,
        kernel_read_bytes=read_bytes,
        disk_read_bytes=None,
        disk_busy_us=SECOND_US // 2,
        own=ContestantCounters(bytes_read=own_bytes),
    )


def cell(
    contestant: str,
    seed: int,
    *,
    read_bytes: int,
    queries_per_s: int = 100,
    own_bytes: int | None = None,
    different: int = 0,
) -> Cell:
    figures = ContestantFigures(
        queries=queries_per_s,
        latency_ms=Spread(count=queries_per_s, mean=2.0, p50=2.0, p99=9.0, max=10.0),
        opening=usage(1_000),
        loop=usage(read_bytes, own_bytes),
        first_answer_us=3 * SECOND_US,
        life_read_bytes=read_bytes,
    )
    same = queries_per_s - different
    return Cell(
        seed=seed,
        window=20,
        contestant=contestant,
        status="ok",
        figures=figures,
        agreement=Agreement(same=same, tied=0, different=different, examples=()),
    )


def ended(status: Status, *, is_bug: bool = False, contestant: str = "base") -> Cell:
    return Cell(
        seed=2, window=20, contestant=contestant, status=status, error="killed", is_bug=is_bug
    )


def disk(seed: int, *bytes_per_s: int) -> DiskBlock:
    rates = tuple(
        DiskRate(depth=depth, reads=1, bytes_read=rate, duration_us=SECOND_US)
        for depth, rate in enumerate(bytes_per_s)
    )
    return DiskBlock(seed=seed, window=20, rates=rates)


def oracle(seed: int) -> OracleCell:
    found = OracleBytes(bytes_read=25_000_000, kept_bytes=0)
    return OracleCell(seed=seed, window=20, name="oracle-window", queries=100, found=found)


CELLS = [
    cell("base", 0, read_bytes=100_000_000, queries_per_s=50),
    cell("base", 1, read_bytes=300_000_000, queries_per_s=100),
    cell("ours", 0, read_bytes=50_000_000, queries_per_s=200),
    cell("ours", 1, read_bytes=100_000_000, queries_per_s=300),
    ended("out of memory", contestant="ours"),
]
DISK = [
    disk(0, 90_000_000, 200_000_000),
    disk(0, 90_000_000, 200_000_000),
    disk(0, 900_000_000, 100_000_000),  # one lucky moment does not count
    disk(1, 200_000_000),
]


def summary(cells: list[Cell]) -> SearchSummary:
    found = SearchCells(cells=cells, disk=DISK, oracles=[oracle(0), oracle(1)])
    return summarise(found, [20], ["base", "ours"], "base")


def test_figures_are_medians_over_seeds_and_ratios_are_paired() -> None:
    base, ours, best = summary(CELLS).rows
    assert (ours.contestant, ours.seeds) == ("ours", 2)
    assert ours.failures == ("seed 2: out of memory: killed",)
    assert ours.figures["queries_per_s"].median == 250
    assert (ours.to_baseline["queries_per_s"].min, ours.to_baseline["queries_per_s"].max) == (3, 4)
    assert ours.to_baseline["bytes_read"].median == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert ours.to_oracles["oracle-window"].median == 3
    assert base.to_baseline["queries_per_s"].median == 1
    assert best.is_computed
    assert best.figures["bytes_a_query"].median == 250_000


def test_the_rate_of_the_disk_is_the_best_median_of_a_depth() -> None:
    assert disk_rate(DISK[:3]) == 200e6
    assert disk_rate([]) is None
    ours = summary(CELLS).rows[1]
    assert ours.figures["disk_share"].max == 0.5  # 100 MB in the second of the loop
    assert ours.figures["disk_share_busy"].max == 1.0  # half of which the disk was busy


@pytest.mark.parametrize(
    ("cells", "kept"),
    [
        (CELLS, [True, True, True, True]),
        ([cell("base", 0, read_bytes=10**8, own_bytes=8 * 10**7)], [False, True, True, True]),
        ([cell("base", 0, read_bytes=1, different=1)], [True, False, True, True]),
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
    assert list(promises_of(summary(cells), cells).values()) == kept


def test_the_tables_show_ranges_failures_and_counts() -> None:
    console = Console(width=200, record=True)
    print_summary(console, summary(CELLS), 0.1)
    text = console.export_text()
    for words in ("250.0 [200.0, 300.0]", "out of memory: killed", "oracle-window (computed)"):
        assert words in text
    assert text.count("not counted") == 2
    counted = [
        cell("base", 0, read_bytes=9, own_bytes=9),
        cell("ours", 0, read_bytes=99 << 20, own_bytes=1),
    ]
    print_summary(console, summary(counted), 0.1)
    text = console.export_text()
    assert "agrees" in text
    assert "disagrees" in text

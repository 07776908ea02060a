"""From cells to the tables: what is a median, a ratio, a failure; and the plot."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bench.core.agreement import Agreement
from bench.core.spread import Range, Spread
from bench.micro.disk import DiskFigures, DiskRate
from bench.retrieval.cells import Cell, DiskBlock, Line, OracleCell, Status
from bench.retrieval.contestant import Counters
from bench.retrieval.measure import ClosedLoopResult, Measured, OpenLoopResult, Usage
from bench.retrieval.oracles import OracleBytes
from bench.retrieval.plot import plot_summary
from bench.retrieval.rates import RateFound
from bench.retrieval.report import print_summary, promises_of
from bench.retrieval.summary import Summary, disk_rates, summarise

SECOND_US = 1_000_000


def usage(*, read_bytes: int, duration_us: int = SECOND_US, own_bytes: int | None = None) -> Usage:
    return Usage(
        duration_us=duration_us,
        cpu_us=duration_us // 2,
        kernel_read_bytes=read_bytes,
        disk_read_bytes=None,
        disk_busy_us=duration_us // 2,
        own=Counters(bytes_read=own_bytes),
    )


def cell(
    contestant: str,
    seed: int,
    *,
    read_bytes: int,
    queries_per_s: int = 100,
    own_bytes: int | None = None,
    different: int = 0,
    held_per_s: float = 0.0,
) -> Cell:
    closed = ClosedLoopResult(
        queries=queries_per_s,
        windows=5,
        drafts=0,
        latency_ms=Spread(count=queries_per_s, mean=2.0, p50=2.0, p99=9.0, max=10.0),
        usage=usage(read_bytes=read_bytes, own_bytes=own_bytes),
    )
    measured = Measured(
        start_us=SECOND_US,
        opening=usage(read_bytes=1_000),
        first_answer_us=3 * SECOND_US,
        closed=closed,
        open_loop=OpenLoopResult(
            p99_max_ms=100.0,
            found=RateFound(held_per_s=held_per_s, failed_per_s=8.0, tries=3),
            tries=(),
            is_out_of_time=False,
        ),
        life_read_bytes=read_bytes,
        anonymous_bytes=5,
    )
    return Cell(
        settings_id="s",
        seed=seed,
        window=20,
        contestant=contestant,
        status="ok",
        measured=measured,
        agreement=Agreement(
            same=queries_per_s - different, tied=0, different=different, examples=()
        ),
    )


def figures(*bytes_per_s: int) -> DiskFigures:
    rates = tuple(
        DiskRate(depth=depth, reads=1, bytes_read=rate, duration_us=SECOND_US)
        for depth, rate in enumerate(bytes_per_s)
    )
    return DiskFigures(rates=rates)


def disk(
    seed: int,
    *bytes_per_s: int,
    slices: DiskFigures | None = None,
    into_cache: DiskFigures | None = None,
) -> DiskBlock:
    return DiskBlock(
        settings_id="s",
        seed=seed,
        window=20,
        figures=figures(*bytes_per_s),
        slices=slices,
        spread=into_cache,
    )


def oracle(seed: int, bytes_read: int, name: str = "oracle-window") -> OracleCell:
    found = OracleBytes(bytes_read=bytes_read, kept_bytes=0)
    return OracleCell(settings_id="s", seed=seed, window=20, name=name, queries=100, found=found)


LINES: list[Line] = [
    cell("base", 0, read_bytes=100_000_000, queries_per_s=50),
    cell("base", 1, read_bytes=300_000_000, queries_per_s=100),
    cell("ours", 0, read_bytes=50_000_000, queries_per_s=200, held_per_s=6.0),
    cell("ours", 1, read_bytes=100_000_000, queries_per_s=300, held_per_s=7.0),
    Cell(
        settings_id="s",
        seed=2,
        window=20,
        contestant="ours",
        status="out of memory",
        error="killed",
    ),
    oracle(0, 25_000_000),
    oracle(1, 25_000_000),
    disk(0, 90_000_000, 100_000_000),
    disk(0, 50_000_000, slices=figures(200_000_000, 70_000_000)),
    disk(0, 300_000_000, into_cache=figures(125_000_000, 90_000_000)),
    disk(1, 200_000_000),
]


def summary(lines: list[Line]) -> Summary:
    return summarise(lines, [20], ["base", "ours"], "base")


def test_figures_are_medians_over_seeds_and_ratios_are_paired() -> None:
    base, ours, best = summary(LINES).rows
    assert (ours.contestant, ours.seeds, ours.failures) == (
        "ours",
        2,
        ("seed 2: out of memory: killed",),
    )
    assert ours.figures["queries_per_s"].median == 250
    assert (ours.to_baseline["queries_per_s"].min, ours.to_baseline["queries_per_s"].max) == (3, 4)
    assert ours.to_baseline["bytes_read"].median == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert ours.to_oracles["oracle-window"]["bytes_read"].median == 3
    assert base.to_baseline["queries_per_s"].median == 1
    assert best.is_computed
    assert best.figures["queries_per_s"].median == 100 * 200e6 / 25e6
    assert ours.figures["queries_per_s_with_loading"].max == 300 / 3


def test_the_disk_of_a_block_is_the_best_median_of_a_size_and_depth() -> None:
    rates = disk_rates(line for line in LINES if isinstance(line, DiskBlock))
    assert rates == {(0, 20): 200e6, (1, 20): 200e6}
    ours = summary(LINES).rows[1]
    assert ours.figures["disk_share"].max == 0.5  # 100 MB in the second of the loop
    assert ours.figures["disk_share_busy"].max == 1.0  # of which it was busy for half


def test_a_moment_in_which_the_disk_was_lucky_does_not_count() -> None:
    blocks = [
        disk(0, 100_000_000, 60_000_000),
        disk(0, 60_000_000, 100_000_000),
        disk(0, 50_000_000, 60_000_000),
    ]
    assert disk_rates(line for line in blocks if isinstance(line, DiskBlock)) == {(0, 20): 60e6}


def test_what_was_measured_again_for_longer_counts_instead_of_the_best_of_what_was_tried() -> None:
    def again(bytes_per_s: int, spread_bytes_per_s: int) -> DiskBlock:
        tried = disk(0, 900_000_000, into_cache=figures(900_000_000))
        return msgspec.structs.replace(
            tried,
            sustained=figures(bytes_per_s).rates[0],
            spread_sustained=figures(spread_bytes_per_s).rates[0],
        )

    blocks = [
        again(100_000_000, 10_000_000),
        again(300_000_000, 30_000_000),
        again(200_000_000, 20_000_000),
    ]
    assert disk_rates(blocks) == {(0, 20): 200e6}
    assert disk_rates(blocks, is_spread=True) == {(0, 20): 20e6}


def test_reads_into_memory_of_a_cache_size_are_a_figure_of_their_own() -> None:
    blocks = [line for line in LINES if isinstance(line, DiskBlock)]
    assert disk_rates(blocks, is_spread=True) == {(0, 20): 125e6}
    found = summary(LINES)
    assert found.spread_bytes_per_s[20].median == 125e6
    assert found.rows[1].figures["disk_share_spread"] == Range(
        median=0.4, min=0.4, max=0.4, count=1
    )


def test_promises_break_when_bytes_or_ids_do_not_agree() -> None:
    assert all(promises_of(summary(LINES), LINES).values())
    liar: list[Line] = [cell("base", 0, read_bytes=100_000_000, own_bytes=90_000_000)]
    assert list(promises_of(summary(liar), liar).values()) == [False, True, True, True]
    wrong: list[Line] = [cell("base", 0, read_bytes=1, different=1)]
    assert list(promises_of(summary(wrong), wrong).values()) == [True, False, True, True]
    bug = [LINES[0], ended("failed", is_bug=True)]
    assert list(promises_of(summary(bug), bug).values()) == [True, True, False, True]


def ended(status: Status, *, is_bug: bool = False) -> Cell:
    return Cell(
        settings_id="s",
        seed=3,
        window=20,
        contestant="base",
        status=status,
        error="why",
        is_bug=is_bug,
    )


def test_a_run_in_which_nothing_was_measured_holds_nothing() -> None:
    refused: list[Line] = [ended("failed")]  # as by a setting that does not do: nobody's bug
    assert list(promises_of(summary(refused), refused).values()) == [True, True, False, False]
    for status in ("out of memory", "timed out"):
        spent: list[Line] = [ended(status)]
        assert list(promises_of(summary(spent), spent).values()) == [True, True, True, False]
        spent.append(LINES[0])
        assert all(promises_of(summary(spent), spent).values())
    assert list(promises_of(summary([]), []).values()) == [True, True, True, False]


def test_how_far_carpool_is_from_the_best_fixed_set_is_a_promise_on_wish() -> None:
    def held_to_90(read_bytes: int) -> dict[str, bool]:
        lines: list[Line] = [
            cell("carpool", seed, read_bytes=read_bytes + seed, held_per_s=6.0)
            for seed in (0, 1, 2)
        ] + [oracle(seed, 1_000_000, "oracle-static") for seed in (0, 1, 2)]
        return promises_of(
            summarise(lines, [20], ["carpool", "base"], "base"), lines, static_max=0.9
        )

    key = "windows of 20: carpool reads {} times the best fixed set's bytes, at most 0.9"
    assert held_to_90(899_999)[key.format("0.900")]
    assert not held_to_90(901_000)[key.format("0.901")]
    failed: list[Line] = [
        Cell(settings_id="s", seed=0, window=20, contestant="carpool", status="timed out")
    ]
    promises = promises_of(summarise(failed, [20], ["carpool"], "base"), failed, static_max=0.9)
    assert promises[key.format("no result")] is False
    assert len(promises_of(summary(LINES), LINES)) == 4


def test_the_tables_say_what_was_held_and_what_failed() -> None:
    console = Console(width=200, record=True)
    print_summary(console, summary(LINES))
    text = console.export_text()
    for words in (
        "250.0 [200.0, 300.0]",
        "below 8",
        "6 [6, 7]",
        "out of memory: killed",
        "oracle-window (computed)",
    ):
        assert words in text
    assert "[lowest, highest]" in text
    assert text.count("not counted") == 2
    counted = [
        cell("base", 0, read_bytes=9, own_bytes=9),
        cell("ours", 0, read_bytes=99 << 20, own_bytes=1),
    ]
    print_summary(console, summary(list(counted)))
    text = console.export_text()
    assert "not counted" not in text and "agrees" in text and "disagrees" in text


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_summary(summary(LINES), tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")

"""The summary of a run: for each window size and contestant, figures over seeds and ratios. Pure.

Ratios are to a baseline and to the oracles, paired by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

import msgspec

from bench.core.spread import Range, over_runs, paired_ratio
from bench.retrieval.cells import Cell, DiskBlock, OracleCell, SearchCells
from bench.retrieval.measure import ContestantFigures

APART = 0.002
"""Ratios compare contestants whose recall at the same probes is at most this far apart."""

Figure = Callable[[Cell], float | None]
BySeed = dict[int, float]


class SearchRow(msgspec.Struct, frozen=True, kw_only=True):
    """A contestant at a window size.

    `seeds`: that have figures; `failures`: one line for each other seed. `agreement`: queries by
    verdict, summed over seeds, for exact contestants. `to_oracles`: ratios of bytes, by oracle.
    `counts_bytes`: the contestant counts its bytes itself. Rows of oracles are computed and have
    only `bytes_read` and `bytes_a_query`.
    """

    window: int
    contestant: str
    seeds: int
    figures: dict[str, Range]
    to_oracles: dict[str, Range]
    failures: tuple[str, ...] = ()
    to_baseline: dict[str, Range] = {}
    agreement: dict[str, int] | None = None
    bytes_agree: bool = True
    counts_bytes: bool = False
    is_computed: bool = False


class SearchSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All rows, by window size, contestants in the order that was asked for."""

    baseline: str
    rows: tuple[SearchRow, ...]
    disk_bytes_per_s: dict[int, Range]


class _Block(msgspec.Struct, frozen=True, kw_only=True):
    """The results at one window size. `rates`: of the disk, by seed."""

    window: int
    cells: dict[str, dict[int, Cell]]
    oracles: dict[str, dict[int, OracleCell]]
    rates: BySeed


def summarise(
    found: SearchCells, windows: Sequence[int], contestants: Sequence[str], baseline: str
) -> SearchSummary:
    """Returns the summary. Without cells of `baseline` no row has ratios to it."""
    rows: list[SearchRow] = []
    disk: dict[int, Range] = {}
    for window in windows:
        block = _block(found, window, contestants)
        rows.extend(_row(block, name, baseline) for name in contestants if block.cells[name])
        rows.extend(_oracle_row(block, name) for name in block.oracles)
        rate = over_runs(block.rates.values())
        if rate is not None:
            disk[window] = rate
    return SearchSummary(baseline=baseline, rows=tuple(rows), disk_bytes_per_s=disk)


def disk_rate(blocks: Iterable[DiskBlock]) -> float | None:
    """Returns bytes a second: the best depth's median over the measurements of a block.

    A median, because a single measurement may be high by chance.
    """
    by_depth: dict[int, list[float]] = {}
    for block in blocks:
        for rate in block.rates:
            by_depth.setdefault(rate.depth, []).append(rate.bytes_per_s)
    return max(map(median, by_depth.values()), default=None)


def _block(found: SearchCells, window: int, contestants: Sequence[str]) -> _Block:
    cells: dict[str, dict[int, Cell]] = {name: {} for name in contestants}
    oracles: dict[str, dict[int, OracleCell]] = {}
    disk: dict[int, list[DiskBlock]] = {}
    for cell in found.cells:
        if cell.window == window:
            cells[cell.contestant][cell.seed] = cell
    for oracle in found.oracles:
        if oracle.window == window:
            oracles.setdefault(oracle.name, {})[oracle.seed] = oracle
    for block in found.disk:
        if block.window == window:
            disk.setdefault(block.seed, []).append(block)
    rates = {seed: disk_rate(blocks) for seed, blocks in sorted(disk.items())}
    return _Block(
        window=window,
        cells=cells,
        oracles=oracles,
        rates={seed: rate for seed, rate in rates.items() if rate is not None},
    )


def _row(block: _Block, name: str, baseline: str) -> SearchRow:
    cells = block.cells[name]
    figures = {figure: _by_seed(cells, get) for figure, get in FIGURES.items()}
    for share, get in (("disk_share", _bytes_per_s), ("disk_share_busy", _bytes_per_busy_s)):
        rates = _by_seed(cells, get)
        figures[share] = {
            seed: rate / block.rates[seed] for seed, rate in rates.items() if seed in block.rates
        }
    others = block.cells.get(baseline, {})
    ratios = {
        figure: paired_ratio(figures[figure], _by_seed(others, FIGURES[figure]))
        for figure in COMPARED
    }
    agreed = [cell.agreement for cell in cells.values() if cell.agreement is not None]
    return SearchRow(
        window=block.window,
        contestant=name,
        seeds=sum(cell.status == "ok" for cell in cells.values()),
        failures=tuple(
            f"seed {seed}: {cell.status}: {cell.error}"
            for seed, cell in sorted(cells.items())
            if cell.status != "ok"
        ),
        figures=_ranges(figures),
        to_baseline={figure: ratio for figure, ratio in ratios.items() if ratio is not None}
        if _finds_as_much(figures, others)
        else {},
        to_oracles=_to_oracles(figures["bytes_read"], block),
        agreement={
            verdict: sum(getattr(one, verdict) for one in agreed)
            for verdict in ("same", "tied", "different")
        }
        if agreed
        else None,
        bytes_agree=all(cell.bytes_agree for cell in cells.values()),
        counts_bytes=any(
            cell.figures is not None and cell.figures.loop.own.bytes_read is not None
            for cell in cells.values()
        ),
    )


def _finds_as_much(figures: Mapping[str, BySeed], others: Mapping[int, Cell]) -> bool:
    """Whether a contestant finds as much of the probed clusters as the baseline, within `APART`."""
    ours, theirs = figures["recall_at_probes"], _by_seed(others, FIGURES["recall_at_probes"])
    both = ours.keys() & theirs.keys()
    return all(abs(ours[seed] - theirs[seed]) <= APART for seed in both)


def _oracle_row(block: _Block, name: str) -> SearchRow:
    figures = _oracle_figures(block, name)
    return SearchRow(
        window=block.window,
        contestant=name,
        seeds=len(block.oracles[name]),
        figures=_ranges(figures),
        to_oracles=_to_oracles(figures["bytes_read"], block),
        is_computed=True,
    )


def _by_seed(cells: Mapping[int, Cell], get: Figure) -> BySeed:
    values = {seed: get(cell) for seed, cell in cells.items()}
    return {seed: value for seed, value in values.items() if value is not None}


def _ranges(figures: Mapping[str, BySeed]) -> dict[str, Range]:
    ranges = {name: over_runs(values.values()) for name, values in figures.items()}
    return {name: found for name, found in ranges.items() if found is not None}


def _oracle_figures(block: _Block, name: str) -> dict[str, BySeed]:
    oracles = block.oracles[name]
    read = {seed: float(oracle.found.bytes_read) for seed, oracle in oracles.items()}
    return {
        "bytes_read": read,
        "bytes_a_query": {seed: read[seed] / oracle.queries for seed, oracle in oracles.items()},
    }


def _to_oracles(bytes_read: BySeed, block: _Block) -> dict[str, Range]:
    ratios = {
        name: paired_ratio(bytes_read, _oracle_figures(block, name)["bytes_read"])
        for name in block.oracles
    }
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


def _measured(get: Callable[[ContestantFigures], float | None]) -> Figure:
    return lambda cell: None if cell.figures is None else get(cell.figures)


def _bytes_per_s(cell: Cell) -> float | None:
    """Over the whole loop, pauses of the disk included."""
    if cell.figures is None:
        return None
    usage = cell.figures.loop
    return usage.kernel_read_bytes / max(usage.duration_us, 1) * 1e6


def _bytes_per_busy_s(cell: Cell) -> float | None:
    """Over the time with a read in flight, of any process."""
    if cell.figures is None:
        return None
    usage = cell.figures.loop
    busy_us = usage.disk_busy_us
    return usage.kernel_read_bytes / busy_us * 1e6 if busy_us else None


FIGURES: dict[str, Figure] = {
    "queries_per_s": _measured(lambda m: m.queries_per_s),
    "p50_ms": _measured(lambda m: m.latency_ms.p50),
    "p99_ms": _measured(lambda m: m.latency_ms.p99),
    "bytes_read": _measured(lambda m: m.loop.kernel_read_bytes),
    "bytes_a_query": _measured(lambda m: m.loop.kernel_read_bytes / m.queries),
    "loading_bytes": _measured(lambda m: m.opening.kernel_read_bytes),
    "first_answer_s": _measured(lambda m: m.first_answer_us / 1e6),
    "recall_at_probes": lambda cell: cell.recall_at_probes,
    "recall": lambda cell: cell.recall,
    "peak_bytes": lambda cell: None if cell.group is None else cell.group.peak_bytes,
}
"""Every figure of a cell, by its name in the JSON."""
COMPARED = ("queries_per_s", "p50_ms", "p99_ms", "bytes_read")

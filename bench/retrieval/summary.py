"""What a run says: for each window size and contestant, figures over seeds, and ratios to a
baseline and to the oracles.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

import msgspec

from bench.core.spread import Range, over_runs, paired_ratio
from bench.retrieval.cells import Cell, DiskBlock, Line, OracleCell

Figure = Callable[[Cell], float | None]
Rates = dict[tuple[int, int], float]
"""Bytes a second by (seed, window)."""
AGAIN = ("sustained", 0)
"""The best size and depth, measured again."""
BASELINES = ("cagr-best-greedy", "faiss-ondisk")
"""What ratios are to where nobody says otherwise: the first of these that takes part."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A contestant at a window size. `failures`: what became of seeds that have no figures;
    `agreement`: queries by verdict, added up over seeds, for exact contestants; `to_oracles`:
    ratios by oracle and figure. `counts_bytes`: whether it counts its own bytes, so that there is
    something for the kernel's to agree with; `revisions`: of the source that its cells ran, each
    once. Rows of oracles are computed and have only `bytes_read`, `bytes_a_query` and
    `queries_per_s`.
    """

    window: int
    contestant: str
    seeds: int
    failures: tuple[str, ...]
    figures: dict[str, Range]
    to_baseline: dict[str, Range]
    to_oracles: dict[str, dict[str, Range]]
    agreement: dict[str, int] | None
    bytes_agree: bool
    counts_bytes: bool
    revisions: tuple[str, ...] = ()
    is_computed: bool = False


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All rows, by window, contestants in the order that was asked for. `baseline`: what ratios are
    to.
    """

    baseline: str
    rows: tuple[Row, ...]
    disk_bytes_per_s: dict[int, Range]
    spread_bytes_per_s: dict[int, Range] = {}
    """The same into as much memory as a cache has."""


def summarise(
    lines: Iterable[Line], windows: Sequence[int], contestants: Sequence[str], baseline: str
) -> Summary:
    """Returns the summary of `lines`. `baseline` need not take part: then no row has ratios to
    it.
    """
    found = list(lines)
    cells = {line.key: line for line in found if isinstance(line, Cell)}
    oracles = [line for line in found if isinstance(line, OracleCell)]
    blocks = [line for line in found if isinstance(line, DiskBlock)]
    rates, spread_rates = disk_rates(blocks), disk_rates(blocks, is_spread=True)
    rows: list[Row] = []
    for window in windows:
        by_name = {
            name: {
                seed: cell
                for (seed, of_window, of_name), cell in cells.items()
                if (of_window, of_name) == (window, name)
            }
            for name in contestants
        }
        window_rates = _of(rates, window)
        in_window = [oracle for oracle in oracles if oracle.window == window]
        rows.extend(
            _row(
                window,
                name,
                by_name[name],
                by_name.get(baseline, {}),
                in_window,
                window_rates,
                _of(spread_rates, window),
            )
            for name in contestants
            if by_name[name]
        )
        rows.extend(_oracle_rows(window, in_window, window_rates))
    return Summary(
        baseline=baseline,
        rows=tuple(rows),
        disk_bytes_per_s=_by_window(rates, windows),
        spread_bytes_per_s=_by_window(spread_rates, windows),
    )


def disk_rates(blocks: Iterable[DiskBlock], *, is_spread: bool = False) -> Rates:
    """Returns bytes a second: what the best size and depth reached when they were measured again,
    for longer, the median of the times that a block's disk was measured; into a buffer for each
    read under way or, `is_spread`, into as much memory as a cache has. In older runs nothing was
    measured again: the best of the medians of each size and depth.

    The best of what was measured would say what luck gives for a moment: rates of shared machines
    swing by a fifth either way.
    """
    found: dict[tuple[int, int], dict[tuple[str, int], list[float]]] = {}
    for block in blocks:
        again = block.spread_sustained if is_spread else block.sustained
        ways = (
            block.bytes_per_s(is_spread=is_spread) if again is None else {AGAIN: again.bytes_per_s}
        )
        for way, rate in ways.items():
            found.setdefault((block.seed, block.window), {}).setdefault(way, []).append(rate)
    return {key: max(map(median, ways.values())) for key, ways in found.items()}


def _of(rates: Rates, window: int) -> dict[int, float]:
    return {seed: rate for (seed, of_window), rate in rates.items() if of_window == window}


def _by_window(rates: Rates, windows: Sequence[int]) -> dict[int, Range]:
    found = {window: over_runs(_of(rates, window).values()) for window in windows}
    return {window: spread for window, spread in found.items() if spread is not None}


def revision_of(cell: Cell) -> str:
    """Returns which source a cell ran, in a word or two."""
    if cell.revision is None:
        return "unknown"
    return cell.revision.commit[:9] + (" modified" if cell.revision.is_modified else "")


def _row(
    window: int,
    name: str,
    cells: Mapping[int, Cell],
    baseline: Mapping[int, Cell],
    oracles: Sequence[OracleCell],
    rates: Mapping[int, float],
    spread_rates: Mapping[int, float],
) -> Row:
    figures = {figure: _by_seed(cells, get) for figure, get in FIGURES.items()}
    for share, get, of in (
        ("disk_share", _bytes_per_s, rates),
        ("disk_share_busy", _bytes_per_busy_s, rates),
        ("disk_share_spread", _bytes_per_s, spread_rates),
    ):
        figures[share] = {
            seed: rate / of[seed] for seed, rate in _by_seed(cells, get).items() if seed in of
        }
    agreed = [cell.agreement for cell in cells.values() if cell.agreement is not None]
    return Row(
        window=window,
        contestant=name,
        seeds=sum(cell.status == "ok" for cell in cells.values()),
        failures=tuple(
            f"seed {seed}: {cell.status}: {cell.error}"
            for seed, cell in sorted(cells.items())
            if cell.status != "ok"
        ),
        figures=_ranges(figures),
        to_baseline={
            figure: ratio
            for figure in COMPARED
            if (ratio := paired_ratio(figures[figure], _by_seed(baseline, FIGURES[figure])))
            is not None
        },
        to_oracles=_to_oracles(figures, oracles, rates),
        agreement={
            verdict: sum(getattr(one, verdict) for one in agreed)
            for verdict in ("same", "tied", "different")
        }
        if agreed
        else None,
        bytes_agree=all(cell.bytes_agree for cell in cells.values()),
        counts_bytes=any(
            cell.measured is not None and cell.measured.closed.usage.own.bytes_read is not None
            for cell in cells.values()
        ),
        revisions=tuple(dict.fromkeys(revision_of(cell) for _, cell in sorted(cells.items()))),
    )


def _oracle_rows(
    window: int, oracles: Sequence[OracleCell], rates: Mapping[int, float]
) -> list[Row]:
    rows = []
    for name in dict.fromkeys(oracle.name for oracle in oracles):
        of_name = {oracle.seed: oracle for oracle in oracles if oracle.name == name}
        figures = _oracle_figures(of_name, rates)
        rows.append(
            Row(
                window=window,
                contestant=name,
                seeds=len(of_name),
                failures=(),
                figures=_ranges(figures),
                to_baseline={},
                to_oracles=_to_oracles(figures, oracles, rates),
                agreement=None,
                bytes_agree=True,
                counts_bytes=False,
                is_computed=True,
            )
        )
    return rows


def _by_seed(cells: Mapping[int, Cell], get: Figure) -> dict[int, float]:
    return {
        seed: value
        for seed, cell in cells.items()
        if cell.measured and (value := get(cell)) is not None
    }


def _ranges(figures: Mapping[str, Mapping[int, float]]) -> dict[str, Range]:
    return {
        name: spread
        for name, values in figures.items()
        if (spread := over_runs(values.values())) is not None
    }


def _oracle_figures(
    oracles: Mapping[int, OracleCell], rates: Mapping[int, float]
) -> dict[str, dict[int, float]]:
    """By seed: bytes, and queries a second if the disk did nothing but read them at its best."""
    read = {seed: float(oracle.found.bytes_read) for seed, oracle in oracles.items()}
    return {
        "bytes_read": read,
        "bytes_a_query": {seed: read[seed] / oracle.queries for seed, oracle in oracles.items()},
        "queries_per_s": {
            seed: oracle.queries * rates[seed] / read[seed]
            for seed, oracle in oracles.items()
            if seed in rates and read[seed]
        },
    }


def _to_oracles(
    figures: Mapping[str, Mapping[int, float]],
    oracles: Sequence[OracleCell],
    rates: Mapping[int, float],
) -> dict[str, dict[str, Range]]:
    found: dict[str, dict[str, Range]] = {}
    for name in dict.fromkeys(oracle.name for oracle in oracles):
        its = _oracle_figures(
            {oracle.seed: oracle for oracle in oracles if oracle.name == name}, rates
        )
        found[name] = {
            figure: ratio
            for figure in ("bytes_read", "queries_per_s")
            if (ratio := paired_ratio(figures[figure], its[figure])) is not None
        }
    return found


def _measured(get: Callable[..., float | None]) -> Figure:
    return lambda cell: None if cell.measured is None else get(cell.measured)


def _bytes_per_s(cell: Cell) -> float | None:
    """Over the whole loop: pauses of the disk count."""
    if cell.measured is None:
        return None
    usage = cell.measured.closed.usage
    return usage.kernel_read_bytes / max(usage.duration_us, 1) * 1e6


def _bytes_per_busy_s(cell: Cell) -> float | None:
    """Over the time with a read outstanding: the contestant's count, or else the device's (all
    processes together).
    """
    if cell.measured is None:
        return None
    usage = cell.measured.closed.usage
    busy_us = usage.own.disk_busy_us or usage.disk_busy_us
    return usage.kernel_read_bytes / busy_us * 1e6 if busy_us else None


FIGURES: dict[str, Figure] = {
    "queries_per_s": _measured(lambda m: m.closed.queries_per_s),
    "queries_per_s_with_loading": _measured(
        lambda m: (
            m.closed.queries
            / (m.start_us + m.opening.duration_us + m.closed.usage.duration_us)
            * 1e6
        )
    ),
    "p50_ms": _measured(lambda m: m.closed.latency_ms.p50),
    "p99_ms": _measured(lambda m: m.closed.latency_ms.p99),
    "bytes_read": _measured(lambda m: m.closed.usage.kernel_read_bytes),
    "bytes_a_query": _measured(lambda m: m.closed.usage.kernel_read_bytes / m.closed.queries),
    "loading_bytes": _measured(lambda m: m.opening.kernel_read_bytes),
    "first_answer_s": _measured(lambda m: m.first_answer_us / 1e6),
    "cpu_ms_a_query": _measured(lambda m: m.closed.usage.cpu_us / 1e3 / m.closed.queries),
    "anonymous_bytes": _measured(lambda m: m.anonymous_bytes),
    "peak_bytes": lambda cell: None if cell.held is None else cell.held.peak_bytes,
    "rate_held_per_s": _measured(
        lambda m: None if m.open_loop is None else m.open_loop.found.held_per_s
    ),
    "rate_failed_per_s": _measured(
        lambda m: None if m.open_loop is None else m.open_loop.found.failed_per_s
    ),
}
"""Every figure of a cell, by its name in the JSON. Those of the rate: what held the target, and the
lowest that did not.
"""
COMPARED = ("queries_per_s", "p50_ms", "p99_ms", "bytes_read", "rate_held_per_s")

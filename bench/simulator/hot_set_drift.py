"""Questions change: how soon is the hot shard good again, and what do its swaps cost?

On virtual time, with real questions: first of HotpotQA, then, from one window to the next, of
Natural Questions. A window comes when the one before is answered, and the next windows wait in
Kafka. The hot set of each rule is judged by questions that nobody asks, against a hot set that was
calibrated on other questions of Natural Questions (the oracle).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from bench.core.report import RunStart, finish
from bench.data.clusters import open_clusters
from bench.data.evaluation import EvaluationData, Float32, distinct_order, read_vectors
from bench.data.index import BenchIndex
from bench.simulator.gpu_costs import H100, ShardGpuCosts
from bench.simulator.hot_set_rules import HedraRagHotSet, HotSetRule, StaticHotSet, hottest
from bench.simulator.shard_costs import measure_searcher
from bench.simulator.shard_searcher import SearcherCosts, ShardSearcher, WindowTimes
from carpool.disk.centroids import probe
from carpool.disk.index import OpenIndex
from carpool.errors import ConfigError
from schemas.record import ClusterId
from searcher.plan.gpu_blocks import BLOCK_ROWS, BOOKS_BYTES, blocks_of
from searcher.plan.hot_swaps import HotSwaps, decayed_counts

Int64 = npt.NDArray[np.int64]

BEFORE, AFTER = "queries-hotpotqa", "queries-nq"
CODEC = "rabitq4"
NEAR = 0.03
"""How near the hit rate of a fresh calibration is near enough."""
WINDOWS_NEAR_MAX = 20
P99_MAX = 1.2
SAME_WINDOWS = 200
"""Windows of questions that do not change."""


class HotSetDriftOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated. `shares`: of the bytes of all clusters; `ahead`: windows that wait."""

    nprobe: int
    shares: tuple[float, ...] = (0.05, 0.1, 0.2)
    windows: tuple[int, ...]
    ahead: int = 4
    orders: int = 3
    gpu: ShardGpuCosts = H100


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Questions of one order, as clusters: (n, nprobe) int64. Those of each field are others.

    `profile`, `before`, `judge_before`: of the questions that come first; `fresh`, `after`,
    `judge`: of those that come then.
    """

    profile: Int64
    before: Int64
    judge_before: Int64
    fresh: Int64
    after: Int64
    judge: Int64


class DriftRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rule, a share and a window; each list has a figure for each order of the questions.

    `windows_until_near`: after the change, until the hit rate is near that of the oracle for good,
    None: not in `windows_after`. Hit rates are the judges': at the end of the first questions, at
    the end, and of the oracle. p99 in microseconds, of the windows without swaps before the change
    and after it, and of those with swaps, None where there are none; `p99_still_us`: of the windows
    with swaps, searched with a shard that never changes. `entered_share`: bytes that entered, over
    those of the shard. `false_left_share`: bytes that left in `SAME_WINDOWS` windows of questions
    that do not change, over those of the shard.
    """

    rule: str
    share: float
    window: int
    windows_after: int
    windows_until_near: list[int | None]
    hit_rate_before: list[float]
    hit_rate_after: list[float]
    hit_rate_oracle: list[float]
    p99_before_us: list[float | None]
    p99_after_us: list[float | None]
    p99_swapping_us: list[float | None]
    p99_still_us: list[float | None]
    entered_share: list[float]
    false_left_share: list[float]


class _Simulated(msgspec.Struct, kw_only=True):
    """A stream that was searched."""

    windows: list[WindowTimes]
    entered_bytes: int
    left_bytes: int


class _World(msgspec.Struct, frozen=True, kw_only=True):
    """An index and what it costs to search it. Arrays: (nlist,) int64."""

    row_counts: Int64
    size_bytes: Int64
    costs: SearcherCosts
    gpu: ShardGpuCosts


RULES = ("static", "hedrarag", "hedrarag-forgets", "carpool", "carpool-horizon")


def run(
    index_dir: Path, data: EvaluationData, options: HotSetDriftOptions, json_file: Path | None
) -> bool:
    """Simulates, prints and reports. Blocks. Raises `ConfigError`."""
    start = RunStart.now()
    index = open_clusters(index_dir)
    if CODEC not in {layout.codec for layout in index.manifest.codes}:
        raise ConfigError(f"the index has no codes {CODEC}; build it with the default codes")
    asked = {name: read_vectors(data.vectors_path(name)) for name in (BEFORE, AFTER)}
    world = _world(index, asked[BEFORE], options)
    probes = {
        name: probe(index.centroids, vectors, options.nprobe).astype(np.int64)
        for name, vectors in asked.items()
    }
    drifts = [
        _drift(
            *(probes[name][distinct_order(asked[name], order)] for name in (BEFORE, AFTER)),
        )
        for order in range(options.orders)
    ]
    rows = [
        row
        for window in options.windows
        for share in options.shares
        for row in _rows(world, drifts, share, window, options.ahead)
    ]
    report = start.report(
        "hot-set-drift",
        settings={"options": options, "costs": world.costs},
        promises=promises_of(rows),
        results=rows,
        index=BenchIndex(dir=index_dir, manifest=index.manifest).facts,
    )
    return finish(report, json_file, lambda console: _print(console, rows))


def promises_of(rows: Sequence[DriftRow]) -> dict[str, bool]:
    """Returns the promises about Carpool's rules, and whether each was kept.

    The p99 without swaps is that of the same windows and `static`: the questions themselves change
    it, too.
    """
    own = [row for row in rows if row.rule.startswith("carpool")]
    return {
        f"hit rate within 3 points of a fresh calibration after {WINDOWS_NEAR_MAX} windows": all(
            windows is not None and windows <= WINDOWS_NEAR_MAX
            for row in own
            for windows in row.windows_until_near
        ),
        f"p99 while clusters are swapped at most {P99_MAX} times that without swaps": all(
            swapping_us is None or still_us is None or swapping_us <= P99_MAX * still_us
            for row in own
            for swapping_us, still_us in zip(row.p99_swapping_us, row.p99_still_us, strict=True)
        ),
        f"no cluster leaves in {SAME_WINDOWS} windows of the same questions": not any(
            share for row in own for share in row.false_left_share
        ),
    }


def _world(index: OpenIndex, vectors: Float32, options: HotSetDriftOptions) -> _World:
    row_counts: Int64 = np.array([extent.row_count for extent in index.extents], np.int64)
    block_bytes = BLOCK_ROWS * index.manifest.dimension * 2 + BOOKS_BYTES
    some = vectors[:500]
    clusters = probe(index.centroids, some, options.nprobe).astype(np.int64)
    return _World(
        row_counts=row_counts,
        size_bytes=np.array([blocks_of(rows) * block_bytes for rows in row_counts.tolist()]),
        costs=measure_searcher(index, CODEC, some, clusters, seed=0),
        gpu=options.gpu,
    )


def _drift(before: Int64, after: Int64) -> Drift:
    """Divides questions: two fifths are profiled, two are asked (a half of the later), the rest
    judge.
    """
    two_fifths, third, half = len(before) * 2 // 5, len(after) * 3 // 10, len(after) // 2
    return Drift(
        profile=before[:two_fifths],
        before=before[two_fifths : 2 * two_fifths],
        judge_before=before[2 * two_fifths :],
        fresh=after[:third],
        after=after[third : third + half],
        judge=after[third + half :],
    )


def _rows(
    world: _World, drifts: Sequence[Drift], share: float, window: int, ahead: int
) -> list[DriftRow]:
    """Returns a row for each rule."""
    bytes_max = int(share * world.size_bytes.sum())
    rows = [
        DriftRow(
            rule=rule,
            share=share,
            window=window,
            windows_after=len(drifts[0].after) // window,
            **{field: [] for field in DriftRow.__struct_fields__ if field not in _GIVEN},
        )
        for rule in RULES
    ]
    for order, drift in enumerate(drifts):
        first = len(drift.before) // window
        stream = np.concatenate([drift.before[: first * window], drift.after])
        same = np.random.default_rng(order).choice(drift.before, SAME_WINDOWS * window)
        still: list[WindowTimes] = []  # of the first rule, whose shard never changes
        for row in rows:
            found = _simulate(world, drift.profile, stream, row.rule, bytes_max, window, ahead)
            still = still or found.windows
            _note_drift(row, world, drift, found, first, bytes_max)
            pairs = zip(found.windows, still, strict=True)
            row.p99_still_us.append(_p99([other for own, other in pairs if own.is_swapping]))
            unchanged = _simulate(world, drift.profile, same, row.rule, bytes_max, window, ahead)
            row.false_left_share.append(unchanged.left_bytes / bytes_max)
    return rows


_GIVEN = ("rule", "share", "window", "windows_after")


def _note_drift(
    row: DriftRow, world: _World, drift: Drift, found: _Simulated, first: int, bytes_max: int
) -> None:
    """Adds the figures of one order. `first`: windows before the change."""
    nlist = len(world.size_bytes)
    fresh = hottest(
        np.bincount(drift.fresh.ravel(), minlength=nlist).astype(float), world.size_bytes, bytes_max
    )
    oracle = _hit_rate(frozenset(fresh.tolist()), drift.judge, nlist)
    after = found.windows[first:]
    hit_rates = [_hit_rate(each.held, drift.judge, nlist) for each in after]
    far = [number for number, rate in enumerate(hit_rates) if rate < oracle - NEAR]
    near_from = far[-1] + 1 if far else 0
    row.windows_until_near.append(near_from if near_from < len(after) else None)
    row.hit_rate_before.append(_hit_rate(found.windows[first - 1].held, drift.judge_before, nlist))
    row.hit_rate_after.append(hit_rates[-1])
    row.hit_rate_oracle.append(oracle)
    before = found.windows[:first]
    row.p99_before_us.append(_p99([each for each in before if not each.is_swapping]))
    row.p99_after_us.append(_p99([each for each in after if not each.is_swapping]))
    swapping = [each for each in found.windows if each.is_swapping]
    row.p99_swapping_us.append(_p99(swapping))
    row.entered_share.append(found.entered_bytes / bytes_max)


def _simulate(
    world: _World,
    profile: Int64,
    stream: Int64,
    rule: str,
    bytes_max: int,
    window: int,
    ahead: int,
) -> _Simulated:
    """Searches a stream window by window."""
    nlist = len(world.size_bytes)
    counts = np.bincount(profile.ravel(), minlength=nlist).astype(float)
    hot = hottest(counts, world.size_bytes, bytes_max)
    searcher = ShardSearcher(
        rule=_rule(rule, world.size_bytes, bytes_max, hot, profile),
        hot=hot.tolist(),
        row_counts=world.row_counts,
        size_bytes=world.size_bytes,
        costs=world.costs,
        gpu=world.gpu,
    )
    queries = [tuple(map(ClusterId, clusters)) for clusters in stream.tolist()]
    windows = []
    for start in range(0, len(queries) - window + 1, window):
        later = stream[start + window : start + (1 + ahead) * window]
        waiting = _probes(later, nlist) if rule == "carpool-horizon" else {}
        windows.append(searcher.search(queries[start : start + window], waiting))
    return _Simulated(
        windows=windows, entered_bytes=searcher.entered_bytes, left_bytes=searcher.left_bytes
    )


def _rule(name: str, size_bytes: Int64, bytes_max: int, hot: Int64, profile: Int64) -> HotSetRule:
    decayed = decayed_counts(profile.tolist(), len(size_bytes))
    counts = np.bincount(profile.ravel(), minlength=len(size_bytes)).astype(float)
    clusters = [*map(ClusterId, hot.tolist())]
    rules: dict[str, Callable[[], HotSetRule]] = {
        "static": StaticHotSet,
        "hedrarag": lambda: HedraRagHotSet(size_bytes, bytes_max, clusters, counts, forgets=False),
        "hedrarag-forgets": lambda: HedraRagHotSet(
            size_bytes, bytes_max, clusters, decayed, forgets=True
        ),
    }
    return rules.get(name, lambda: HotSwaps(size_bytes, bytes_max, clusters, decayed))()


def _probes(queries: Int64, nlist: int) -> Mapping[ClusterId, float]:
    """How many of `queries` probe each cluster, if any does."""
    counts = np.bincount(queries.ravel(), minlength=nlist)
    return {ClusterId(cluster): float(counts[cluster]) for cluster in np.flatnonzero(counts)}


def _hit_rate(held: frozenset[int], queries: Int64, nlist: int) -> float:
    is_held = np.zeros(nlist, bool)
    is_held[list(held)] = True
    return float(is_held[queries].mean())


def _p99(windows: Sequence[WindowTimes]) -> float | None:
    times_us = [each for window in windows for each in window.search_us]
    return float(np.quantile(times_us, 0.99)) if times_us else None


def _ms(times_us: Sequence[float | None]) -> str:
    known_us = [each for each in times_us if each is not None]
    return f"{np.median(known_us) / 1e3:.1f}" if known_us else "-"


def _p99s(row: DriftRow) -> tuple[list[float | None], ...]:
    return row.p99_before_us, row.p99_after_us, row.p99_swapping_us, row.p99_still_us


def _print(console: Console, rows: Sequence[DriftRow]) -> None:
    table = Table(
        "window",
        "share",
        "rule",
        "windows until near",
        "hit rate: before; after; fresh",
        "p99 ms: before; after; swapping; still",
        "entered, x shard",
        "left without drift, x shard",
    )
    for row in rows:
        table.add_row(
            str(row.window),
            f"{row.share:.0%}",
            row.rule,
            " ".join("-" if each is None else str(each) for each in row.windows_until_near),
            "; ".join(
                f"{np.median(each):.3f}"
                for each in (row.hit_rate_before, row.hit_rate_after, row.hit_rate_oracle)
            ),
            "; ".join(map(_ms, _p99s(row))),
            f"{np.median(row.entered_share):.2f}",
            " ".join(f"{share:.2f}" for share in row.false_left_share),
        )
    console.print(table)

"""Explains the choice of a hot set: `carpool index hot-set`. Measures on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from carpool.clock import Clock
from carpool.disk.index import OpenIndex
from carpool.errors import ConfigError
from searcher.build import bytes_for_codes
from searcher.codes.load import load_codes
from searcher.codes.open import choose_codes
from searcher.measure_times import BatchScans, measure_times
from searcher.plan.hot_set import (
    HotSetChoice,
    NestedHotSets,
    best_batch,
    choose_among,
    nested_hot_sets,
)
from searcher.plan.search_times import SearchTimes, fit_search_times
from searcher.settings import SearcherSettings

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Of the bytes of all clusters: the points of the report."""
MEASURE_US = 2_000_000
FLOAT16_BYTES = 2


class HotSetPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A hot set: its hit rates, and the size of batch that is the best for the targets."""

    clusters: int
    size_bytes: int
    share: float
    mean_hit_rate: float
    least_hit_rate: float
    batch: int
    search_us: float
    meets: bool


class HotSetReport(msgspec.Struct, frozen=True, kw_only=True):
    """The choice, the measured times, and hot sets of other sizes. `questions`: that were profiled.

    `all_bytes`: of all clusters, as float16. A target of 0 is none.
    """

    questions: int
    nprobe: int
    codec: str
    target_us: float
    queries_per_s: float
    bytes_max: int
    all_bytes: int
    times: SearchTimes
    choice: HotSetChoice
    points: tuple[HotSetPoint, ...]


def hot_set_report(
    index: OpenIndex,
    settings: SearcherSettings,
    queries: Float32,
    probes: Sequence[Int64],
    clock: Clock,
    on_step: Callable[[str, int], None],
    on_done: Callable[[int], None],
) -> HotSetReport:
    """Returns the report for the targets of `settings` (`shard_*`). Blocks for some seconds.

    `queries`: (n, dim) float32, real questions; `probes`: the clusters of each. Loads the codes
    that a searcher would. `on_step` gets each step and its units, `on_done` the units that are done
    since the last call. Raises `ConfigError` where not all codes fit its budget, or without
    questions; `RetryableError` where the machine is too busy to measure.
    """
    sizes = np.array([extent.row_count for extent in index.extents], np.int64)
    sets = nested_hot_sets(probes, sizes * FLOAT16_BYTES * index.manifest.dimension)
    if not sets.queries:
        raise ConfigError(
            "there are no questions to profile: which clusters are hot is not known. Name a file "
            "of real questions with --questions"
        )
    codec, times = _measure(index, settings, queries, probes, clock, on_step, on_done)
    all_bytes = int(sets.size_bytes[-1])
    targets = {
        "target_us": 1_000.0 * settings.shard_target_ms,
        "queries_per_s": float(settings.shard_queries_per_s),
    }
    bytes_max = settings.shard_bytes_max or all_bytes
    choice = choose_among(sets, times, bytes_max=bytes_max, **targets)
    numbers = [sets.fitting(share * all_bytes) for share in SHARES] + [len(choice.clusters)]
    return HotSetReport(
        questions=sets.queries,
        nprobe=sets.nprobe,
        codec=codec,
        **targets,
        bytes_max=bytes_max,
        all_bytes=all_bytes,
        times=times,
        choice=choice,
        points=tuple(_point(sets, number, times, **targets) for number in sorted(set(numbers))),
    )


def _measure(
    index: OpenIndex,
    settings: SearcherSettings,
    queries: Float32,
    probes: Sequence[Int64],
    clock: Clock,
    on_step: Callable[[str, int], None],
    on_done: Callable[[int], None],
) -> tuple[str, SearchTimes]:
    chosen = choose_codes(index, bytes_for_codes(index, settings))
    if chosen is None or chosen.paged_bytes is not None:
        raise ConfigError(
            f"the index at {index.dir} has no codes that fit searcher.budget_bytes "
            f"({settings.budget_bytes:,}): a searcher measures search times only where it holds "
            "all codes in memory. Raise the budget, or build the index with --codes"
        )
    on_step("loading codes (bytes)", sum(extent.read_bytes for extent in chosen.codes.extents))
    codes = load_codes(chosen.codes, index.centroids, direct_io="auto", on_bytes=on_done)
    with BatchScans(codes.scanner, codes.codec, clock, settings.scoring_threads) as scans:
        on_step("measuring searches (us)", MEASURE_US)
        samples = measure_times(
            scans, queries, probes, clock, budget_us=MEASURE_US, on_round=on_done
        )
    return codes.codec, fit_search_times(samples, scans.threads)


def _point(
    sets: NestedHotSets,
    number: int,
    times: SearchTimes,
    *,
    target_us: float,
    queries_per_s: float,
) -> HotSetPoint:
    hits = sets.hits(number, cautious=True)
    best = best_batch(hits, times, target_us=target_us, queries_per_s=queries_per_s)
    return HotSetPoint(
        clusters=number,
        size_bytes=int(sets.size_bytes[number]),
        share=float(sets.size_bytes[number] / max(1, sets.size_bytes[-1])),
        mean_hit_rate=float(sets.means[number]),
        least_hit_rate=sets.hits(number).expected_least(best.batch),
        batch=best.batch,
        search_us=best.took_us,
        meets=best.strain <= 1,
    )

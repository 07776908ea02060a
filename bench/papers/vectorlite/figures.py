"""The model of the hot set against held-out questions: hit rates, times of real scans, bytes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from rich.console import Console

from bench.core.run import begin
from bench.data.clusters import open_clusters
from bench.data.evaluation import distinct_order
from bench.data.index import BenchIndex
from bench.papers.vectorlite.held_out import HeldOut
from bench.papers.vectorlite.options import VectorLiteOptions
from bench.papers.vectorlite.printed import (
    batch_time_eq5,
    clusters_as_printed,
    least_hit_rate_eq4,
)
from bench.search.questions import read_question_vectors
from carpool.clock import SystemClock
from carpool.disk.centroids import probe
from carpool.disk.index import OpenIndex
from carpool.errors import ConfigError
from searcher.measure_times import BatchScans, TimeRounds
from searcher.plan.hot_set import BATCH_MAX, NestedHotSets, choose_hot_set, nested_hot_sets
from searcher.plan.search_times import SearchTimes, batch_time_us, fit_search_times
from searcher.settings import SearcherSettings

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

SHARES = (0.05, 0.1, 0.2, 0.4)
"""Of the bytes of all clusters."""
BATCHES = (1, 8, 32, 64)
SPLITS = 3
"""Random halves of the questions, for which bytes are chosen."""
HIT_RATE_OFF_MAX = 0.06
TIME_OFF_MAX = 0.15
BYTES_OVER_MAX = 1.15
QUESTIONS_MIN = 200


class BatchRow(msgspec.Struct, frozen=True, kw_only=True):
    """A hot set and a size of batch. Each pair: the least hit rate, and microseconds."""

    share: float
    batch: int
    measured: tuple[float, float]
    model: tuple[float, float]
    printed: tuple[float, float]


class BytesRow(msgspec.Struct, frozen=True, kw_only=True):
    """A target, and the bytes for it in each split: of the model, of Eq. 3 to 10 as printed, and
    the least that are enough for the other half.
    """

    target_us: float
    queries_per_s: float
    chosen: list[int]
    printed: list[int]
    least: list[int]

    def overs(self, sizes: Sequence[int]) -> list[float]:
        """Returns sizes over the least."""
        return [one / max(1, least) for one, least in zip(sizes, self.least, strict=True)]


class VectorLiteResults(msgspec.Struct, frozen=True, kw_only=True):
    """The measured times, and the rows of the figure."""

    questions: int
    times: SearchTimes
    batches: list[BatchRow]
    bytes: list[BytesRow]


class Split:
    """Questions in two halves, by chance: `sets` of the first, and the second, which judges."""

    def __init__(self, index: OpenIndex, vectors: Float32, nprobe: int, seed: int) -> None:
        self.vectors = vectors[np.random.default_rng(seed).permutation(len(vectors))]
        self.probes = probe(index.centroids, self.vectors, nprobe).astype(np.int64)
        self.half = len(vectors) // 2
        rows = np.array([extent.row_count for extent in index.extents], np.int64)
        profiled = list(self.probes[: self.half])
        self.sets: NestedHotSets = nested_hot_sets(profiled, rows * index.manifest.dimension)
        self.judges = HeldOut(self.probes[self.half :], self.sets.clusters, seed)


def run(options: VectorLiteOptions) -> bool:
    """Measures, prints and reports; returns whether every promise was kept. Blocks.

    Raises `ConfigError` for an index without codes or too few questions, `RetryableError` where
    the times do not fit a line.
    """
    run = begin("vectorlite", options)
    index = open_clusters(options.index)
    vectors = read_question_vectors(options.questions)
    vectors = vectors[distinct_order(vectors, options.seed)]
    if not index.manifest.codes or len(vectors) < QUESTIONS_MIN:
        raise ConfigError(
            f"{len(vectors)} distinct questions that chose nothing, and codes "
            f"{[layout.codec for layout in index.manifest.codes]}: at least {QUESTIONS_MIN} "
            "questions are needed, and an index that was built with --codes rabitq4"
        )
    seeds = range(options.seed, options.seed + SPLITS)
    splits = [Split(index, vectors, options.nprobe, seed) for seed in seeds]
    is_bytes = options.figure == "bytes"
    cells = [] if is_bytes else [(share, batch) for share in SHARES for batch in BATCHES]
    times, measured_us = _measure(index, options, splits[0], cells)
    results = VectorLiteResults(
        questions=len(vectors),
        times=times,
        batches=[
            _batch_row(splits[0], times, *cell, took_us)
            for cell, took_us in zip(cells, measured_us, strict=True)
        ],
        bytes=[bytes_row(splits, times, *one) for one in targets_of(times)] if is_bytes else [],
    )
    return run.finish(
        lambda console: _print(console, results),
        promises=_promises(results),
        results=results,
        index=BenchIndex(dir=index.dir, manifest=index.manifest).facts,
    )


def _promises(results: VectorLiteResults) -> dict[str, bool]:
    if results.bytes:
        overs = [statistics.median(row.overs(row.chosen)) for row in results.bytes]
        return {
            "hot sets meet their targets with held-out questions, in half of the splits or more": (
                min(overs) >= 1
            ),
            f"hot sets take at most {BYTES_OVER_MAX} times the least bytes, the median of splits": (
                max(overs) <= BYTES_OVER_MAX
            ),
        }
    rows = results.batches
    rates = [abs(row.model[0] - row.measured[0]) for row in rows]
    times = [abs(row.model[1] / row.measured[1] - 1) for row in rows]
    return {
        f"every least hit rate within {HIT_RATE_OFF_MAX}": max(rates) <= HIT_RATE_OFF_MAX,
        f"the median time within {TIME_OFF_MAX:.0%}": statistics.median(times) <= TIME_OFF_MAX,
    }


def _measure(
    index: OpenIndex,
    options: VectorLiteOptions,
    split: Split,
    cells: Sequence[tuple[float, int]],
) -> tuple[SearchTimes, list[float]]:
    """Measures the times that the model starts from, and those of `cells`, in turn."""
    codes = index.open_codes(index.manifest.codes[0].codec)
    random = np.random.default_rng(options.seed)
    measured_us: list[list[int]] = [[] for _ in cells]
    with BatchScans(index, codes, SearcherSettings(), SystemClock()) as scans:
        profiled = slice(0, split.half)
        rounds = TimeRounds(scans, split.vectors[profiled], list(split.probes[profiled]))
        for _ in range(options.rounds):
            rounds.scan()
            for at in random.permutation(len(cells)).tolist():
                share, batch = cells[at]
                hot = split.sets.clusters[: split.sets.share(share)]
                chosen = random.integers(split.half, len(split.probes), size=batch)
                cold = [one[~np.isin(one, hot)] for one in split.probes[chosen]]
                measured_us[at].append(scans.time_us(split.vectors[chosen], cold))
        times = fit_search_times(rounds.samples(), scans.threads)
    return times, [statistics.median(each) for each in measured_us]


def _batch_row(
    split: Split, times: SearchTimes, share: float, batch: int, took_us: float
) -> BatchRow:
    clusters = split.sets.share(share)
    hits = split.sets.hits(clusters)
    printed = least_hit_rate_eq4(hits, batch)
    least = float(split.judges.hit_rates(clusters, batch).min(axis=1).mean())
    return BatchRow(
        share=share,
        batch=batch,
        measured=(least, took_us),
        model=(hits.expected_least(batch), batch_time_us(times, hits, batch)),
        printed=(printed, batch_time_eq5(times, batch, printed)),
    )


def targets_of(times: SearchTimes) -> list[tuple[float, float]]:
    """Returns five targets: microseconds, and questions a second; 0 for none.

    A target is what batches take of which every question misses some share of its clusters.
    """

    def took_us(batch: int, misses: float) -> float:
        return batch_time_eq5(times, batch, 1 - misses)

    both = [(times.threads, 0.8), (min(8 * times.threads, BATCH_MAX), 0.5)]
    return [
        (2 * took_us(1, 0.8), 0.0),
        (2 * took_us(1, 0.5), 0.0),
        (0.0, BATCH_MAX * 1e6 / took_us(BATCH_MAX, 0.6)),
        *(
            (2 * took_us(batch, misses), batch * 1e6 / took_us(batch, misses + 0.1))
            for batch, misses in both
        ),
    ]


def bytes_row(
    splits: Sequence[Split], times: SearchTimes, target_us: float, queries_per_s: float
) -> BytesRow:
    """Returns what each split chooses for a target, and needs."""
    target = {"target_us": target_us, "queries_per_s": queries_per_s}
    sizes: list[tuple[int, ...]] = []
    for split in splits:
        chosen = choose_hot_set(split.sets, times, **target).clusters
        printed = clusters_as_printed(split.sets, times, **target)
        least = split.judges.fewest(times, **target)
        sizes.append(tuple(split.sets.size_bytes[[chosen, printed, least]].tolist()))
    chosen_bytes, printed_bytes, least_bytes = map(list, zip(*sizes, strict=True))
    return BytesRow(**target, chosen=chosen_bytes, printed=printed_bytes, least=least_bytes)


def _print(console: Console, results: VectorLiteResults) -> None:
    for row in results.batches:
        pairs = (("measured", row.measured), ("model", row.model), ("printed", row.printed))
        shown = "; ".join(f"{name} {rate:.3f} {us / 1e3:.2f} ms" for name, (rate, us) in pairs)
        console.print(f"{row.share:.0%} of the bytes, {row.batch} questions: {shown}")
    for size in results.bytes:
        console.print(
            f"{size.target_us / 1e3:.2f} ms, {size.queries_per_s:,.0f} questions a second: least "
            f"{statistics.median(size.least) / 1e6:,.1f} MB; over it: chosen "
            f"{_spread(size.overs(size.chosen))}, as printed {_spread(size.overs(size.printed))}"
        )


def _spread(figures: Sequence[float]) -> str:
    return f"{statistics.median(figures):.2f} [{min(figures):.2f}, {max(figures):.2f}]"

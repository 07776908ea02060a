"""The model of the hot set against held-out questions: hit rates, times of real scans, bytes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from bench.core.command import reported
from bench.core.progress import progress_bars
from bench.core.report import RunStart, finish
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
from carpool.terminal import TerminalConsole
from searcher.codes.load import load_codes
from searcher.measure_times import QUERIES_A_ROUND, BatchScans, TimeRounds
from searcher.plan.hot_set import BATCH_MAX, NestedHotSets, choose_hot_set, nested_hot_sets
from searcher.plan.search_times import SearchTimes, batch_time_us, fit_search_times

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

SHARES = (0.05, 0.1, 0.2, 0.4)
"""Of the bytes of all clusters."""
BATCHES = (1, 8, 32, 64)
HIT_RATE_OFF_MAX = 0.06
TIME_OFF_MAX = 0.15
BYTES_OVER_MAX = 1.15
QUESTIONS_MIN = 200


class ShareRow(msgspec.Struct, frozen=True, kw_only=True):
    """A hot set and a size of batch: what was measured, the model, and an equation as printed.

    The least hit rate of a batch, or its time in microseconds.
    """

    share: float
    batch: int
    measured: float
    model: float
    printed: float


class BytesRow(msgspec.Struct, frozen=True, kw_only=True):
    """A target, and the bytes for it in each split: of the model, of Eq. 3 to 10 as printed, and
    the least that are enough for the other half.
    """

    target_us: float
    queries_per_s: float
    chosen: list[int]
    printed: list[int]
    least: list[int]


class VectorLiteResults(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that were asked for, and the measured times of the codes."""

    questions: int
    times: SearchTimes | None
    hit_rates: list[ShareRow]
    batch_times: list[ShareRow]
    bytes: list[BytesRow]


@dataclass(frozen=True, kw_only=True)
class Split:
    """Questions in two halves: `sets` of the profiled ones, and the others, which judge.

    `vectors`: (n, dim) float32; `probes`: (n, nprobe) int64, the profiled half first.
    """

    vectors: Float32
    probes: Int64
    half: int
    sets: NestedHotSets
    judges: HeldOut

    def clusters(self, share: float) -> int:
        """Returns how many of the hottest clusters fit a share of all bytes."""
        return self.sets.fitting(share * float(self.sets.size_bytes[-1]))


def split_of(index: OpenIndex, vectors: Float32, nprobe: int, seed: int) -> Split:
    """Returns the questions in two halves, by chance."""
    vectors = vectors[np.random.default_rng(seed).permutation(len(vectors))]
    probes = probe(index.centroids, vectors, nprobe).astype(np.int64)
    half = len(vectors) // 2
    row_counts = np.array([extent.row_count for extent in index.extents], np.int64)
    sets = nested_hot_sets(list(probes[:half]), row_counts * index.manifest.dimension)
    judges = HeldOut(probes[half:], sets.clusters, seed)
    return Split(vectors=vectors, probes=probes, half=half, sets=sets, judges=judges)


def run(options: VectorLiteOptions) -> bool:
    """Measures, prints and reports; returns whether every promise was kept. Blocks.

    Raises `ConfigError` for an index without codes or too few questions.
    """
    start = RunStart.now()
    index = open_clusters(options.index)
    vectors = read_question_vectors(options.questions)
    vectors = vectors[distinct_order(vectors, options.seed)]
    if not index.manifest.codes or len(vectors) < QUESTIONS_MIN:
        raise ConfigError(
            f"{len(vectors)} distinct questions that chose nothing, and codes "
            f"{[layout.codec for layout in index.manifest.codes]}: at least {QUESTIONS_MIN} "
            "questions are needed, and an index that was built with --codes rabitq4"
        )
    split = split_of(index, vectors, options.nprobe, options.seed)
    wanted = {"hit-rates", "times", "bytes"} if options.figure == "all" else {options.figure}
    times: SearchTimes | None = None
    hit_rates: list[ShareRow] = []
    batch_times: list[ShareRow] = []
    sizes: list[BytesRow] = []
    if "hit-rates" in wanted:
        hit_rates = [_hit_rate(split, share, batch) for share in SHARES for batch in BATCHES]
    if wanted & {"times", "bytes"}:
        times, batch_times = _measured(index, options, split)
    if "bytes" in wanted and times is not None:
        seeds = range(options.seed, options.seed + options.splits)
        splits = [split_of(index, vectors, options.nprobe, seed) for seed in seeds]
        sizes = [bytes_row(splits, times, *target) for target in targets_of(times)]
    results = VectorLiteResults(
        questions=len(vectors),
        times=times,
        hit_rates=hit_rates,
        batch_times=batch_times,
        bytes=sizes,
    )
    report = start.report(
        "vectorlite",
        settings=reported(options),
        promises=_promises(results),
        results=results,
        index=BenchIndex(dir=index.dir, manifest=index.manifest).facts,
    )
    return finish(report, options.json_file, lambda console: _print(console, results))


def _promises(results: VectorLiteResults) -> dict[str, bool]:
    times = [abs(row.model / row.measured - 1) for row in results.batch_times] or [0.0]
    return {
        f"every least hit rate within {HIT_RATE_OFF_MAX}": all(
            abs(row.model - row.measured) <= HIT_RATE_OFF_MAX for row in results.hit_rates
        ),
        f"the median time within {TIME_OFF_MAX:.0%}": statistics.median(times) <= TIME_OFF_MAX,
        "hot sets meet their targets with held-out questions, in at least half of the splits": all(
            statistics.median(_overs(row.chosen, row.least)) >= 1 for row in results.bytes
        ),
        f"hot sets take at most {BYTES_OVER_MAX} times the least bytes, the median of splits": all(
            statistics.median(_overs(row.chosen, row.least)) <= BYTES_OVER_MAX
            for row in results.bytes
        ),
    }


def _overs(sizes: Sequence[int], least: Sequence[int]) -> list[float]:
    return [size / max(1, fewest) for size, fewest in zip(sizes, least, strict=True)]


def _hit_rate(split: Split, share: float, batch: int) -> ShareRow:
    clusters = split.clusters(share)
    hits = split.sets.hits(clusters)
    return ShareRow(
        share=share,
        batch=batch,
        measured=float(split.judges.hit_rates(clusters, batch).min(axis=1).mean()),
        model=hits.expected_least(batch),
        printed=least_hit_rate_eq4(hits, batch),
    )


def _measured(
    index: OpenIndex, options: VectorLiteOptions, split: Split
) -> tuple[SearchTimes, list[ShareRow]]:
    """Measures the times that the model starts from, and batches beside hot sets, in turn.

    Raises `RetryableError` where the times do not fit a line.
    """
    codes = index.open_codes(index.manifest.codes[0].codec)
    scanner = load_codes(codes, index.centroids, direct_io="auto").scanner
    cells = [(share, batch) for share in SHARES for batch in BATCHES]
    random = np.random.default_rng(options.seed)
    measured_us: dict[tuple[float, int], list[float]] = {cell: [] for cell in cells}
    with (
        BatchScans(scanner, codes.layout.codec, SystemClock()) as scans,
        progress_bars(TerminalConsole(stderr=True)) as tell,
    ):
        half = split.half
        rounds = TimeRounds(scans, split.vectors[:half], list(split.probes[:half]))
        for done in range(options.rounds):
            rounds.scan()
            for at in random.permutation(len(cells)).tolist():
                share, batch = cells[at]
                hot = split.sets.clusters[: split.clusters(share)]
                count = max(1, QUERIES_A_ROUND // batch)
                measured_us[cells[at]].append(
                    statistics.fmean(
                        _batch_us(scans, split, hot, batch, random) for _ in range(count)
                    )
                )
            tell("rounds", done + 1, options.rounds)
        times = fit_search_times(rounds.samples(), scans.threads)
    rows = []
    for (share, batch), took_us in measured_us.items():
        hits = split.sets.hits(split.clusters(share))
        rows.append(
            ShareRow(
                share=share,
                batch=batch,
                measured=statistics.median(took_us),
                model=batch_time_us(times, hits, batch),
                printed=batch_time_eq5(times, batch, least_hit_rate_eq4(hits, batch)),
            )
        )
    return times, rows


def _batch_us(
    scans: BatchScans, split: Split, hot: Int64, batch: int, random: np.random.Generator
) -> int:
    """Returns how long a batch of held-out questions takes, over the clusters that are not hot."""
    chosen = random.integers(split.half, len(split.probes), size=batch)
    probes = split.probes[chosen]
    is_hot = np.isin(probes, hot)
    cold = [one[~mask] for one, mask in zip(probes, is_hot, strict=True)]
    return scans.time_us(split.vectors[chosen], cold)


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

    def size(split: Split, clusters: int) -> int:
        return int(split.sets.size_bytes[clusters])

    return BytesRow(
        **target,
        chosen=[choose_hot_set(one.sets, times, **target).size_bytes for one in splits],
        printed=[size(one, clusters_as_printed(one.sets, times, **target)) for one in splits],
        least=[size(one, one.judges.fewest(times, **target)) for one in splits],
    )


def _print(console: Console, results: VectorLiteResults) -> None:
    for title, rows, unit in (
        ("Least hit rate of a batch", results.hit_rates, 1.0),
        ("Time of a batch, ms", results.batch_times, 1e-3),
    ):
        table = Table("share of bytes", "batch", "measured", "model", "as printed", title=title)
        for row in rows:
            figures = (f"{one * unit:.3f}" for one in (row.measured, row.model, row.printed))
            table.add_row(f"{row.share:.0%}", str(row.batch), *figures)
        if rows:
            console.print(table)
    if results.bytes:
        table = Table("target ms", "questions/s", "least MB", "chosen", "as printed", title="Bytes")
        for size in results.bytes:
            table.add_row(
                f"{size.target_us / 1000:.2f}" if size.target_us else "-",
                f"{size.queries_per_s:,.0f}" if size.queries_per_s else "-",
                f"{statistics.median(size.least) / 1e6:,.1f}",
                *(_spread(_overs(each, size.least)) for each in (size.chosen, size.printed)),
            )
        console.print(table, "Medians [lowest, highest] of the splits; over the least.")


def _spread(figures: Sequence[float]) -> str:
    return f"{statistics.median(figures):.2f} [{min(figures):.2f}, {max(figures):.2f}]"

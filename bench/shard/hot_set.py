"""The model of the hot set against held-out questions: hit rates, times of real scans, bytes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.baselines.contestant import Float32, Int64
from bench.core.command import reported
from bench.core.options import counts_of, shares_of
from bench.core.progress import progress_bars
from bench.core.report import RunStart, finish
from bench.data.clusters import open_clusters
from bench.data.evaluation import distinct_order
from bench.data.index import BenchIndex
from bench.retrieval.questions import read_question_vectors
from bench.shard.cli import HotSetOptions
from bench.shard.held_out import HeldOut
from bench.shard.printed import batch_time_eq5, least_hit_rate_eq4
from bench.shard.sizing import SizingRow, Split, sizing_rows
from carpool.clock import SystemClock
from carpool.disk.centroids import probe
from carpool.disk.index import OpenIndex
from carpool.errors import ConfigError
from carpool.terminal import TerminalConsole
from searcher.codes.load import load_codes
from searcher.measure_times import QUERIES_A_ROUND, BatchScans, TimeRounds
from searcher.plan.hot_set import NestedHotSets, nested_hot_sets
from searcher.plan.search_times import SearchTimes, batch_time_us, fit_search_times

HIT_RATE_OFF_MAX = 0.06
TIME_OFF_MAX = 0.15
BYTES_OVER_MAX = 1.15
QUESTIONS_MIN = 200
FLOAT16_BYTES = 2


class HitRateRow(msgspec.Struct, frozen=True, kw_only=True):
    """The least hit rate of batches of held-out questions, and what was expected.

    `mean`: the mean hit rate of the profiled questions, and of the others.
    """

    share: float
    clusters: int
    batch: int
    measured: float
    expected: float
    eq4_as_printed: float
    mean: float
    mean_held_out: float


class TimeRow(msgspec.Struct, frozen=True, kw_only=True):
    """The time of batches of held-out questions: the median of the means of all rounds.

    The others are the expected times over it: `model`, and Eq. 5 with the least and with the mean
    hit rate.
    """

    share: float
    batch: int
    measured_us: float
    model: float
    eq5_least: float
    eq5_mean: float


class HotSetResults(msgspec.Struct, frozen=True, kw_only=True):
    """All rows, and the search times of the machine."""

    questions_profiled: int
    questions_held_out: int
    times: SearchTimes
    hit_rates: tuple[HitRateRow, ...]
    times_of_batches: tuple[TimeRow, ...]
    sizes: tuple[SizingRow, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Half:
    """Questions: `vectors` (n, dim) float32; `probes` (n, nprobe) int64."""

    vectors: Float32
    probes: Int64


def run(options: HotSetOptions) -> bool:
    """Measures, prints and reports; returns whether every promise was kept. Blocks.

    Raises `ConfigError` for an index without codes or too few questions.
    """
    start = RunStart.now()
    index = open_clusters(options.index)
    vectors = _questions(index, options)
    split, profiled, held_out = _split(index, vectors, options, options.seed)
    shares = shares_of("--shares", options.shares)
    batches = counts_of("--batches", options.batches)
    hit_rates = [
        _hit_rates(split.sets, split.judges, share, batch) for share in shares for batch in batches
    ]
    times, of_batches = _times(index, options, split.sets, profiled, held_out)
    threads = [each or times.threads for each in _numbers("--threads", options.threads)]
    seeds = range(options.seed, options.seed + options.splits)
    splits = [_split(index, vectors, options, seed)[0] for seed in seeds]
    results = HotSetResults(
        questions_profiled=len(profiled.probes),
        questions_held_out=len(held_out.probes),
        times=times,
        hit_rates=tuple(hit_rates),
        times_of_batches=tuple(of_batches),
        sizes=tuple(sizing_rows(splits, times, threads)),
    )
    report = start.report(
        "hot-set",
        settings=reported(options),
        promises=_promises(results),
        results=results,
        index=BenchIndex(dir=index.dir, manifest=index.manifest).facts,
    )
    return finish(report, options.json_file, lambda console: _print(console, results))


def _promises(results: HotSetResults) -> dict[str, bool]:
    offs = [abs(row.model - 1) for row in results.times_of_batches]
    here = [row for row in results.sizes if row.threads == results.times.threads]
    return {
        f"every least hit rate within {HIT_RATE_OFF_MAX}": all(
            abs(row.expected - row.measured) <= HIT_RATE_OFF_MAX for row in results.hit_rates
        ),
        f"the median time within {TIME_OFF_MAX:.0%}": statistics.median(offs) <= TIME_OFF_MAX,
        "hot sets for the threads of this machine meet their targets with held-out questions, "
        "the median of all splits": all(statistics.median(row.strains) <= 1 for row in here),
        f"hot sets take at most {BYTES_OVER_MAX} times the least bytes, the median of all splits": (
            all(statistics.median(row.overs) <= BYTES_OVER_MAX for row in results.sizes)
        ),
    }


def _numbers(option: str, given: str) -> list[int]:
    try:
        return [int(number) for number in given.split(",")]
    except ValueError as error:
        raise ConfigError(f"{option} {given}: name numbers, such as 1,8,32") from error


def _questions(index: OpenIndex, options: HotSetOptions) -> Float32:
    if not index.manifest.codes:
        raise ConfigError(
            f"the index at {index.dir} has no codes to scan: build it with --codes rabitq4"
        )
    vectors = read_question_vectors([options.questions]).vectors
    vectors = vectors[distinct_order(vectors, options.seed)]
    if len(vectors) < QUESTIONS_MIN:
        raise ConfigError(
            f"{options.questions} has {len(vectors)} distinct questions that chose nothing; at "
            f"least {QUESTIONS_MIN} are needed"
        )
    return vectors


def _split(
    index: OpenIndex, vectors: Float32, options: HotSetOptions, seed: int
) -> tuple[Split, _Half, _Half]:
    """The questions that choose, and those that judge."""
    vectors = vectors[np.random.default_rng(seed).permutation(len(vectors))]
    probes = probe(index.centroids, vectors, options.nprobe).astype(np.int64)
    half = len(vectors) // 2
    row_counts = np.array([extent.row_count for extent in index.extents], np.int64)
    size_bytes = FLOAT16_BYTES * index.manifest.dimension * row_counts
    sets = nested_hot_sets(list(probes[:half]), size_bytes)
    return (
        Split(
            probes=list(probes[:half]),
            sets=sets,
            judges=HeldOut(probes[half:], sets.clusters, seed),
        ),
        _Half(vectors=vectors[:half], probes=probes[:half]),
        _Half(vectors=vectors[half:], probes=probes[half:]),
    )


def _number(sets: NestedHotSets, share: float) -> int:
    """How many of the hottest clusters fit a share of all bytes."""
    return sets.fitting(share * float(sets.size_bytes[-1]))


def _hit_rates(sets: NestedHotSets, judges: HeldOut, share: float, batch: int) -> HitRateRow:
    number = _number(sets, share)
    hits = sets.hits(number)
    return HitRateRow(
        share=share,
        clusters=number,
        batch=batch,
        measured=judges.least_hit_rate(number, batch),
        expected=hits.expected_least(batch),
        eq4_as_printed=least_hit_rate_eq4(hits, batch),
        mean=hits.mean,
        mean_held_out=float(judges.hit_rates(number).mean()),
    )


def _times(
    index: OpenIndex,
    options: HotSetOptions,
    sets: NestedHotSets,
    profiled: _Half,
    held_out: _Half,
) -> tuple[SearchTimes, list[TimeRow]]:
    """Measures the times that the model starts from, and batches beside hot sets, in turn.

    Raises `RetryableError` where the times do not fit a line.
    """
    codes = index.open_codes(index.manifest.codes[0].codec)
    scanner = load_codes(codes, index.centroids, direct_io="auto").scanner
    cells = [
        (share, batch)
        for share in shares_of("--shares", options.shares)
        for batch in counts_of("--batches", options.batches)
    ]
    random = np.random.default_rng(options.seed)
    measured_us: dict[tuple[float, int], list[float]] = {cell: [] for cell in cells}
    with (
        BatchScans(scanner, codes.layout.codec, SystemClock()) as scans,
        progress_bars(TerminalConsole(stderr=True)) as tell,
    ):
        rounds = TimeRounds(scans, profiled.vectors, list(profiled.probes))
        for done in range(options.rounds):
            rounds.scan()
            for at in random.permutation(len(cells)).tolist():
                hot = sets.clusters[: _number(sets, cells[at][0])]
                drawn = _drawn(held_out, hot, cells[at][1], random)
                measured_us[cells[at]].append(statistics.fmean(scans.time_us(*it) for it in drawn))
            tell("rounds", done + 1, options.rounds)
        times = fit_search_times(rounds.samples(), scans.threads)
    rows = [
        _time_row(times, sets, *cell, statistics.median(each)) for cell, each in measured_us.items()
    ]
    return times, rows


def _drawn(
    held_out: _Half, hot: Int64, batch: int, random: np.random.Generator
) -> Iterator[tuple[Float32, list[Int64]]]:
    """Yields batches of held-out questions, and of each the clusters that are not `hot`."""
    for _ in range(max(1, QUERIES_A_ROUND // batch)):
        chosen = random.integers(len(held_out.probes), size=batch)
        probes = held_out.probes[chosen]
        is_hot = np.isin(probes, hot)
        yield (
            held_out.vectors[chosen],
            [one[~mask] for one, mask in zip(probes, is_hot, strict=True)],
        )


def _time_row(
    times: SearchTimes, sets: NestedHotSets, share: float, batch: int, measured_us: float
) -> TimeRow:
    hits = sets.hits(_number(sets, share))
    return TimeRow(
        share=share,
        batch=batch,
        measured_us=measured_us,
        model=batch_time_us(times, hits, batch) / measured_us,
        eq5_least=float(batch_time_eq5(times, batch, hits.expected_least(batch))) / measured_us,
        eq5_mean=float(batch_time_eq5(times, batch, hits.mean)) / measured_us,
    )


def _print(console: Console, results: HotSetResults) -> None:
    times = results.times
    console.print(
        f"a batch takes {times.fixed_us:.0f} us + {times.other_us:.1f} us a question; all clusters "
        f"of a question take {times.scan_us:.0f} us on one of {times.threads} threads"
    )
    table = Table(
        *("share of bytes", "batch", "least hit rate", "model", "Eq. 4 as printed", "mean"),
        title="Hit rates",
    )
    for row in results.hit_rates:
        rates = (row.measured, row.expected, row.eq4_as_printed, row.mean)
        table.add_row(f"{row.share:.0%}", str(row.batch), *(f"{rate:.3f}" for rate in rates))
    console.print(table)
    table = Table(
        *("share of bytes", "batch", "ms", "model", "Eq. 5", "Eq. 5 by the mean"),
        title="Times, and expected over measured",
    )
    for time in results.times_of_batches:
        ratios = (time.model, time.eq5_least, time.eq5_mean)
        table.add_row(
            f"{time.share:.0%}",
            str(time.batch),
            f"{time.measured_us / 1000:.2f}",
            *(f"{ratio:.2f}" for ratio in ratios),
        )
    console.print(table)
    table = Table(
        *("threads", "target ms", "questions/s", "MB chosen", "over the least"),
        *("of the target", "splits that miss", "naive: over the least", "of the target"),
        title="Bytes: medians [lowest, highest] of the splits",
    )
    for size in results.sizes:
        naive_overs = [
            naive / max(1, least)
            for naive, least in zip(size.naive_bytes, size.least_bytes, strict=True)
        ]
        table.add_row(
            str(size.threads),
            f"{size.target_us / 1000:.2f}" if size.target_us else "-",
            f"{size.queries_per_s:,.0f}" if size.queries_per_s else "-",
            f"{statistics.median(size.chosen_bytes) / 1e6:,.0f}",
            _spread(size.overs),
            _spread(size.strains),
            f"{sum(strain > 1 for strain in size.strains)} of {len(size.strains)}",
            f"{statistics.median(naive_overs):.2f}",
            f"{statistics.median(size.naive_strains):.2f}",
        )
    console.print(table)


def _spread(figures: Sequence[float]) -> str:
    return f"{statistics.median(figures):.2f} [{min(figures):.2f}, {max(figures):.2f}]"

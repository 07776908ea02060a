"""Five targets: the hot set that is chosen, against the smallest one that held-out questions need.

A target is what batches take of which every question misses some share of its clusters: alone, by
questions a second, and both, for as many questions as threads and for eight times as many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from bench.baselines.contestant import Int64
from bench.shard.held_out import HeldOut
from bench.shard.printed import batch_time_eq5
from carpool.errors import ConfigError
from searcher.plan.hot_set import BATCH_MAX, NestedHotSets, choose_among
from searcher.plan.search_times import SearchTimes


class SizingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A target, and what each split of the questions in two halves chose for it and needed.

    `chosen_bytes`: by one half; `least_bytes`: of the hottest clusters that meet the target with
    the other half. `strains`: what the chosen ones take of the target with the other half; at most
    1: they meet it. `naive_*`: the choice by the mean hit rate of the profiled questions
    themselves, and by Eq. 5 as printed with it.
    """

    threads: int
    target_us: float
    queries_per_s: float
    chosen_bytes: tuple[int, ...]
    least_bytes: tuple[int, ...]
    strains: tuple[float, ...]
    naive_bytes: tuple[int, ...]
    naive_strains: tuple[float, ...]

    @property
    def overs(self) -> list[float]:
        """The chosen bytes over the least, of each split."""
        pairs = zip(self.chosen_bytes, self.least_bytes, strict=True)
        return [chosen / max(1, least) for chosen, least in pairs]


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """Questions in two halves: the profiled ones, their hot sets, and the others."""

    probes: Sequence[Int64]
    sets: NestedHotSets
    judges: HeldOut


def sizing_rows(
    splits: Sequence[Split], measured: SearchTimes, threads: Sequence[int]
) -> list[SizingRow]:
    """Returns a row for each target, for machines with `threads` threads, as fast as this one.

    `measured`: the times of this machine. Raises `ConfigError` for a target that no hot set meets.
    """
    rows = []
    for count in threads:
        # What a question takes beside its scans is work of the same threads.
        other_us = measured.other_us * measured.threads / count
        times = replace(measured, threads=count, other_us=other_us)
        rows += [_row(splits, times, *wanted) for wanted in _targets(times)]
    return rows


def _row(
    splits: Sequence[Split], times: SearchTimes, target_us: float, queries_per_s: float
) -> SizingRow:
    wanted = {"target_us": target_us, "queries_per_s": queries_per_s}
    numbers: list[tuple[int, int, int]] = []
    for split in splits:
        fewest = split.judges.fewest(times, **wanted)
        if fewest is None:
            raise ConfigError(
                f"no hot set reaches {target_us:.0f} us and {queries_per_s:.0f} questions a second "
                "with the measured times: the machine may be busy; measure again"
            )
        all_bytes = int(split.sets.size_bytes[-1])
        choice = choose_among(split.sets, times, bytes_max=all_bytes, **wanted)
        naive = _naive_number(split.probes, split.sets, times, **wanted)
        numbers.append((len(choice.clusters), fewest, naive))

    def bytes_of(at: int) -> tuple[int, ...]:
        pairs = zip(splits, numbers, strict=True)
        return tuple(int(split.sets.size_bytes[number[at]]) for split, number in pairs)

    def strains_of(at: int) -> tuple[float, ...]:
        pairs = zip(splits, numbers, strict=True)
        return tuple(split.judges.strain(times, number[at], **wanted) for split, number in pairs)

    return SizingRow(
        threads=times.threads,
        **wanted,
        chosen_bytes=bytes_of(0),
        least_bytes=bytes_of(1),
        strains=strains_of(0),
        naive_bytes=bytes_of(2),
        naive_strains=strains_of(2),
    )


def _targets(times: SearchTimes) -> Iterator[tuple[float, float]]:
    """Yields five targets: microseconds, and questions a second; 0 for none."""

    def took_us(batch: int, misses: float) -> float:
        return float(batch_time_eq5(times, batch, 1 - misses))

    yield 2 * took_us(1, 0.8), 0.0
    yield 2 * took_us(1, 0.5), 0.0
    yield 0.0, BATCH_MAX * 1e6 / took_us(BATCH_MAX, 0.6)
    for batch, misses in ((times.threads, 0.8), (min(8 * times.threads, BATCH_MAX), 0.5)):
        yield 2 * took_us(batch, misses), batch * 1e6 / took_us(batch, misses + 0.1)


def _naive_number(
    probes: Sequence[Int64],
    sets: NestedHotSets,
    times: SearchTimes,
    *,
    target_us: float,
    queries_per_s: float,
) -> int:
    """How many clusters meet the targets by Eq. 5, if each question had the mean hit rate.

    That is the mean of the profiled questions themselves.
    """
    counts = np.bincount(np.concatenate(probes), minlength=len(sets.clusters))[sets.clusters]
    means = np.concatenate([[0.0], np.cumsum(counts) / counts.sum()])
    meeting = np.zeros(len(means), bool)
    for batch in range(1, BATCH_MAX + 1):
        took_us = batch_time_eq5(times, batch, means)
        is_soon = 2 * took_us <= target_us if target_us else np.ones(len(means), bool)
        meeting |= is_soon & (batch * 1e6 / took_us >= queries_per_s)
    return int(meeting.argmax()) if meeting.any() else len(means) - 1

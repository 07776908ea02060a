"""The bytes of hot sets that are chosen for a target, and those that held-out questions need."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from bench.core.run import BenchRun
from bench.data.evaluation import distinct_order, read_vectors
from bench.data.index import BenchIndex
from bench.papers.options import VectorLiteOptions
from bench.papers.vectorlite.printed import batch_time_eq5, clusters_as_printed
from carpool.arrays import Float32, Int64
from carpool.clock import SystemClock
from carpool.disk.centroids import probe
from carpool.disk.index import OpenIndex, open_index
from carpool.errors import ConfigError
from searcher.measure_times import BatchScans, TimeRounds
from searcher.plan.hot_set import BATCH_MAX, choose_hot_set, nested_hot_sets
from searcher.plan.search_times import SearchTimes, fit_search_times
from searcher.settings import SearcherSettings

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""The sizes of batches that are tried for a target."""

SPLITS = 3
"""Random halves of the questions, for which bytes are chosen."""
BYTES_OVER_MAX = 1.15
QUESTIONS_MIN = 200


BytesRow = dict[str, float]
"""The bytes for a target: the least that are enough for the other half of the questions.

And those of the model, and of Eq. 3 to 10 as printed, over the least. Medians of the splits.
"""


class HeldOut:
    """Questions that chose nothing, judged by the hot sets of others.

    The times are of the mean batch: threads share the scans, and a question takes the time of its
    misses.
    """

    def __init__(self, probes: Int64, clusters: Int64) -> None:
        """`probes`: (questions, nprobe); `clusters`: (nlist,), the hottest first."""
        places = np.empty(len(clusters), np.int64)
        places[clusters] = np.arange(len(clusters))
        self._places = places[probes]
        self._nlist = len(clusters)

    def meets(
        self, times: SearchTimes, clusters: int, *, target_us: float, queries_per_s: float
    ) -> bool:
        """Returns whether the hottest `clusters` meet the targets, with the best size of batch.

        Twice the time of a batch is within `target_us`, because a question waits for
        its batch as long as it is searched. A target of 0 is none.
        """
        misses = float((self._places >= clusters).mean())
        for batch in BATCHES:
            scans_us = times.scan_us * batch * misses / times.threads
            took_us = times.fixed_us + times.other_us * batch + scans_us
            is_soon = not target_us or 2 * took_us <= target_us
            if is_soon and batch * 1e6 / took_us >= queries_per_s:
                return True
        return False

    def fewest(self, times: SearchTimes, *, target_us: float, queries_per_s: float) -> int:
        """Returns the fewest of the hottest clusters that meet the targets; all where none do."""
        target = {"target_us": target_us, "queries_per_s": queries_per_s}
        return bisect_left(
            range(self._nlist), True, key=lambda clusters: self.meets(times, clusters, **target)
        )


class Split:
    """Questions in two halves, by chance: `sets` of the first, and the second, which judges."""

    def __init__(self, index: OpenIndex, vectors: Float32, nprobe: int, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(len(vectors))
        half = len(vectors) // 2
        self.vectors = vectors[order[:half]]
        probes = probe(index.centroids, vectors[order], nprobe).astype(np.int64)
        self.probes = list(probes[:half])
        rows = np.array([extent.row_count for extent in index.extents], np.int64)
        self.sets = nested_hot_sets(self.probes, rows * index.manifest.dimension)
        self.judges = HeldOut(probes[half:], self.sets.clusters)


def run(options: VectorLiteOptions) -> bool:
    """Raises `ConfigError` for an index without codes or with too few questions."""
    run = BenchRun("vectorlite", options)
    index = open_index(options.index)
    index.close()  # no documents are read
    vectors = read_vectors(options.questions)
    vectors = vectors[distinct_order(vectors, options.seed)]
    if (codes := index.open_codes()) is None or len(vectors) < QUESTIONS_MIN:
        raise ConfigError(
            f"{len(vectors)} distinct questions that chose nothing: at least {QUESTIONS_MIN} are "
            "needed, and an index with codes (carpool index codes DIR makes them)"
        )
    seeds = range(options.seed, options.seed + SPLITS)
    splits = [Split(index, vectors, options.nprobe, seed) for seed in seeds]
    scans = BatchScans(index, codes, SearcherSettings(), SystemClock())
    timed = TimeRounds(scans, splits[0].vectors, splits[0].probes)
    for _ in range(options.rounds):
        timed.scan()
    times = fit_search_times(timed.samples(), scans.threads)
    rows = {
        f"{number}: {target_us / 1e3:.2f} ms, {queries_per_s:,.0f} a second": bytes_row(
            splits, times, target_us=target_us, queries_per_s=queries_per_s
        )
        for number, (target_us, queries_per_s) in enumerate(targets_of(times), 1)
    }
    overs = [row["chosen_over"] for row in rows.values()]
    return run.finish(
        {"bytes": rows},
        promises={
            "hot sets meet their targets with held-out questions, in half of the splits or more": (
                min(overs) >= 1
            ),
            f"hot sets take at most {BYTES_OVER_MAX} times the least bytes, the median of splits": (
                max(overs) <= BYTES_OVER_MAX
            ),
        },
        results={"questions": len(vectors), "times": times, "bytes": rows},
        index=BenchIndex(dir=index.dir, manifest=index.manifest).facts,
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


def bytes_row(splits: Sequence[Split], times: SearchTimes, **target: float) -> BytesRow:
    """Returns what the splits choose for a target, and need."""
    found = []
    for split in splits:
        chosen = choose_hot_set(split.sets, times, **target).clusters
        printed = clusters_as_printed(split.sets, times, **target)
        least = split.judges.fewest(times, **target)
        found.append(split.sets.size_bytes[[least, chosen, printed]])
    sizes = np.array(found, np.float64)
    over = np.median(sizes[:, 1:] / np.maximum(1, sizes[:, :1]), axis=0)
    least_mb = float(np.median(sizes[:, 0])) / 1e6
    return {"least_mb": least_mb, "chosen_over": float(over[0]), "printed_over": float(over[1])}

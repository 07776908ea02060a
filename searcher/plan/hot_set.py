"""How many clusters a hot shard must hold: the hottest, and as few as the targets allow. Pure.

VectorLiteRAG, section 4.1, Eq. 6 to 10. The hot sets are nested: each has one cluster more than the
last, by the number of probes. The chosen one is the smallest for which there is a size of batch
whose search takes at most half of the target (Eq. 9: a query waits for a batch as long as it is
searched), and that answers as many queries a second as the LLM (Eq. 7).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from carpool.arrays import Int64
from searcher.plan.search_times import SearchTimes, batch_time_us

Float64 = npt.NDArray[np.float64]

BATCH_MAX = 128
"""The largest batch that is considered."""
STANDARD_ERRORS = 2.5
"""Hit rates are taken to be lower than those of the profiled queries, by so many standard errors:
the mean of a few hundred queries is known to some percent only."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NestedHotSets:
    """Hot sets of 0, 1, ... nlist clusters, and their hit rates. No query is judged by itself.

    `clusters`: (nlist,) int64, hottest first. The others are (nlist + 1,), by number of clusters:
    `size_bytes` int64; `means` and `variances` float64, of the hit rates of queries. `nprobe`:
    clusters of a query, on average. `queries`: how many were profiled.
    """

    clusters: Int64
    size_bytes: Int64
    means: Float64
    variances: Float64
    nprobe: int
    queries: int

    def cautious_mean(self, number: int) -> float:
        """Returns the mean hit rate of the hottest `number` clusters, less `STANDARD_ERRORS`."""
        deviation = math.sqrt(float(self.variances[number]) / max(1, self.queries - 1))
        return min(1.0, max(0.0, float(self.means[number]) - STANDARD_ERRORS * deviation))

    def share(self, share: float) -> int:
        """Returns how many of the hottest clusters fit a share of all bytes."""
        bytes_max = share * float(self.size_bytes[-1])
        return max(0, int(np.searchsorted(self.size_bytes, bytes_max, side="right")) - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class HotSet:
    """A hot set of `clusters` clusters, the hottest ones, and what the model expects of it.

    `mean_hit_rate` is that of queries. `batch` is the size of batches that is the best for the
    targets; each is searched in `search_us`. `meets` says whether the targets are met.
    """

    clusters: int
    size_bytes: int
    mean_hit_rate: float
    batch: int
    search_us: float
    meets: bool


def nested_hot_sets(probes: Sequence[Int64], size_bytes: Int64) -> NestedHotSets:
    """Returns the hot sets of profiled queries. Clusters of equal counts are taken by number.

    `probes`: the clusters of each query, all different; `size_bytes`: (nlist,) int64. Raises
    `ValueError` where a cluster is not in the index.

    Each query is judged by the counts of the *other* queries: a query is sure to hit clusters that
    are hot only because it probed them, and new queries are not. Time: sorts all probes twice.
    """
    nlist = len(size_bytes)
    widths = np.array([len(one) for one in probes], np.int64)
    owners = np.repeat(np.arange(len(probes)), widths)
    probed = np.concatenate([*probes, np.empty(0, np.int64)]).astype(np.int64)
    if len(probed) and not 0 <= probed.min() <= probed.max() < nlist:
        raise ValueError(f"a query probes clusters that an index of {nlist} does not have")
    counts = np.bincount(probed, minlength=nlist)
    clusters = np.argsort(-counts, kind="stable")
    places = _places_for_others(counts, clusters)[probed]
    means, variances = _moments(places, owners, widths, nlist)
    used = widths[widths > 0]
    nprobe = max(1, round(float(used.mean()))) if len(used) else 1
    return NestedHotSets(
        clusters=clusters,
        size_bytes=np.concatenate([[0], np.cumsum(size_bytes[clusters])]).astype(np.int64),
        means=means,
        variances=variances,
        nprobe=nprobe,
        queries=len(used),
    )


def judge_hot_set(
    sets: NestedHotSets,
    clusters: int,
    times: SearchTimes,
    *,
    target_us: float,
    queries_per_s: float,
) -> HotSet:
    """Returns what to expect of the hottest `clusters` clusters. A target of 0 is none."""
    hit_rate = sets.cautious_mean(clusters)

    def strain(batch: int) -> tuple[float, int, float]:
        """How much of a target a size of batch takes: above 1 where one is missed."""
        took_us = batch_time_us(times, hit_rate, batch)
        late = 2 * took_us / target_us if target_us > 0 else 0.0  # Eq. 9
        slow = queries_per_s * took_us / 1e6 / batch  # Eq. 6 and 7
        return max(late, slow), batch, took_us

    worst, batch, took_us = min(map(strain, range(1, BATCH_MAX + 1)))
    return HotSet(
        clusters=clusters,
        size_bytes=int(sets.size_bytes[clusters]),
        mean_hit_rate=float(sets.means[clusters]),
        batch=batch,
        search_us=took_us,
        meets=worst <= 1,
    )


def choose_hot_set(
    sets: NestedHotSets, times: SearchTimes, *, target_us: float, queries_per_s: float
) -> HotSet:
    """Returns the smallest hot set that meets both targets; all clusters where none does.

    Bisects: of more clusters no query has fewer hits. (Of very few queries, caution may judge a
    larger set to be worse; then a smaller one than this may do. One cluster less never does.)
    """

    def judged(clusters: int) -> HotSet:
        return judge_hot_set(
            sets, clusters, times, target_us=target_us, queries_per_s=queries_per_s
        )

    missing, chosen = -1, judged(len(sets.clusters))
    while chosen.meets and chosen.clusters - missing > 1:
        middle = judged((missing + chosen.clusters) // 2)
        if middle.meets:
            chosen = middle
        else:
            missing = middle.clusters
    return chosen


def _places_for_others(counts: Int64, clusters: Int64) -> Int64:
    """The place of each cluster in the order, with one probe less.

    A query that probed the cluster is judged by this place. The places of the other clusters of
    this query are not changed for it. Returns (nlist,) int64.
    """
    nlist = len(counts)
    # Sorted like `clusters`: by count, largest first, then by number.
    keys = -counts[clusters] * nlist + clusters
    return np.searchsorted(keys, -(counts - 1) * nlist + np.arange(nlist)) - 1


def _moments(places: Int64, owners: Int64, widths: Int64, nlist: int) -> tuple[Float64, Float64]:
    """Means and variances of the hit rates of the first 0, 1, ... nlist places: (nlist + 1,) each.

    `places`: of all probes; `owners`: the query of each; `widths`: the probes of each query.
    """
    order = np.lexsort((places, owners))
    starts = np.cumsum(widths) - widths
    before = np.arange(len(order)) - starts[owners[order]]  # hits of the query at earlier places
    width = widths[owners[order]]
    # A hit more changes the square of the hits by 2 before + 1.
    squares = np.bincount(places[order] + 1, (2 * before + 1) / width**2, nlist + 1)
    hits = np.bincount(places[order] + 1, 1 / width, nlist + 1)
    count = max(1, int((widths > 0).sum()))
    means = np.minimum(np.cumsum(hits) / count, 1.0)
    return means, np.maximum(np.cumsum(squares) / count - means**2, 0)

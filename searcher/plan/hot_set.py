"""Which clusters a hot shard holds at first: the hottest, and as few as the targets allow. Pure.

VectorLiteRAG, section 4.1, Eq. 6 to 10. The hot sets are nested: each has one cluster more than the
last, by the number of probes. The chosen one is the smallest for which there is a size of batch
whose search takes at most half of the target (Eq. 9: a query waits for a batch as long as it is
searched), and that answers as many queries a second as the LLM (Eq. 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schemas.record import ClusterId
from searcher.plan.beta_binomial import Float64, correlations, least_hit_rates
from searcher.plan.search_times import SearchTimes, batch_time_us

Int64 = npt.NDArray[np.int64]

BATCH_MAX = 128
"""The largest batch that is considered."""
STANDARD_ERRORS = 2.0
"""The mean hit rate is taken to be lower than that of the profiled queries, by so many standard
errors: the mean of a few hundred queries is known to some percent only."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NestedHotSets:
    """Hot sets of 0, 1, ... nlist clusters, and the hit rates of queries that chose none of them.

    `clusters`: (nlist,) int64, hottest first. The others are (nlist + 1,), by number of clusters:
    `size_bytes` int64; `means` and `correlations` float64, of the Beta-binomial distribution of
    hits; `cautious`, the means less `STANDARD_ERRORS`. `nprobe`: clusters of a query, on average.
    `queries`: how many were profiled.
    """

    clusters: Int64
    size_bytes: Int64
    means: Float64
    correlations: Float64
    cautious: Float64
    nprobe: int
    queries: int

    def least_hit_rates(self, batch_max: int = BATCH_MAX) -> Float64:
        """Returns the expected least hit rates of batches: (nlist + 1, batch_max)."""
        return least_hit_rates(self.cautious, self.correlations, self.nprobe, batch_max)


@dataclass(frozen=True, kw_only=True, slots=True)
class HotSetChoice:
    """The chosen clusters, hottest first, and what the model expects of them.

    `size_bytes`: in the shard. `mean_hit_rate`, `least_hit_rate`: of batches of `batch` queries,
    which are searched in `search_us`. `meets`: whether the targets are met. `reason`: a sentence.
    """

    clusters: tuple[ClusterId, ...]
    size_bytes: int
    mean_hit_rate: float
    least_hit_rate: float
    batch: int
    search_us: float
    meets: bool
    reason: str


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
    errors = np.sqrt(variances / max(1, len(used) - 1))
    return NestedHotSets(
        clusters=clusters,
        size_bytes=np.concatenate([[0], np.cumsum(size_bytes[clusters])]).astype(np.int64),
        means=means,
        correlations=correlations(means, variances, nprobe),
        cautious=np.clip(means - STANDARD_ERRORS * errors, 0, 1),
        nprobe=nprobe,
        queries=len(used),
    )


def choose_hot_set(
    probes: Sequence[Int64],
    size_bytes: Int64,
    times: SearchTimes,
    *,
    target_us: float,
    queries_per_s: float,
    bytes_max: int,
) -> HotSetChoice:
    """Returns the smallest hot set that meets both targets, of at most `bytes_max`.

    A target of 0 is none; without any, or where none of that size meets them, it is the largest
    that fits. `probes`, `size_bytes`: see `nested_hot_sets`. Without profiled queries it is empty.
    """
    sets = nested_hot_sets(probes, size_bytes)
    return choose_among(
        sets, times, target_us=target_us, queries_per_s=queries_per_s, bytes_max=bytes_max
    )


def largest_hot_set(probes: Sequence[Int64], size_bytes: Int64, bytes_max: int) -> HotSetChoice:
    """Returns the hot set that takes all of `bytes_max`; `batch` and `search_us` are 0: not known.

    For where search times are not known; see `choose_hot_set` for the arguments.
    """
    sets = nested_hot_sets(probes, size_bytes)
    fitting = int(np.searchsorted(sets.size_bytes, bytes_max, side="right"))
    number = max(0, fitting - 1) if sets.queries else 0
    return HotSetChoice(
        clusters=tuple(map(ClusterId, sets.clusters[:number].tolist())),
        size_bytes=int(sets.size_bytes[number]),
        mean_hit_rate=float(sets.means[number]),
        least_hit_rate=float(sets.least_hit_rates(1)[number, 0]),
        batch=0,
        search_us=0.0,
        meets=True,
        reason=_why(sets, number, bytes_max, has_target=False, meets=True),
    )


def choose_among(
    sets: NestedHotSets,
    times: SearchTimes,
    *,
    target_us: float,
    queries_per_s: float,
    bytes_max: int,
) -> HotSetChoice:
    """Returns one of `sets`; see `choose_hot_set`."""
    batches = np.arange(1, BATCH_MAX + 1, dtype=float)
    least = sets.least_hit_rates()
    took_us = batch_time_us(times, batches[None, :], sets.cautious[:, None], least)
    strain = np.zeros_like(took_us)  # at most 1: met
    if target_us > 0:
        strain = np.maximum(strain, 2 * took_us / target_us)  # Eq. 9
    if queries_per_s > 0:
        strain = np.maximum(strain, queries_per_s * took_us / 1e6 / batches)  # Eq. 6 and 7
    has_target = target_us > 0 or queries_per_s > 0
    fitting = int(np.searchsorted(sets.size_bytes, bytes_max, side="right"))
    meeting = np.flatnonzero((strain[:fitting] <= 1).any(axis=1))
    if not sets.queries:
        number = 0
    elif has_target and len(meeting):
        number = int(meeting[0])
    else:
        number = max(0, fitting - 1)
    at = int(strain[number].argmin())
    meets = bool(strain[number, at] <= 1)
    search_us = float(took_us[number, at])
    return HotSetChoice(
        clusters=tuple(map(ClusterId, sets.clusters[:number].tolist())),
        size_bytes=int(sets.size_bytes[number]),
        mean_hit_rate=float(sets.means[number]),
        least_hit_rate=float(least[number, at]),
        batch=at + 1,
        search_us=search_us,
        meets=meets,
        reason=_why(sets, number, bytes_max, has_target=has_target, meets=meets)
        + f"; batches of {at + 1} are searched in {search_us / 1000:.2f} ms, "
        f"{(at + 1) * 1e6 / search_us:,.0f} queries a second",
    )


def _why(sets: NestedHotSets, number: int, bytes_max: int, *, has_target: bool, meets: bool) -> str:
    """Says why the hot set of `number` clusters is the chosen one."""
    of_index = f"{sets.size_bytes[number] / max(1, sets.size_bytes[-1]):.0%} of the index"
    if not sets.queries:
        return "no questions were profiled, so the shard starts empty"
    if not has_target:
        return f"no target is set, so the shard takes what {bytes_max:,} bytes hold, {of_index}"
    if not meets and number + 1 < len(sets.size_bytes):
        return f"the targets need more than {bytes_max:,} bytes, which hold {of_index}"
    if not meets:
        return "the targets are not met even with the whole index in the shard"
    if not number:
        return "the targets are met without a shard"
    return f"{number:,} clusters, {of_index}, are the fewest that meet the targets"


def _places_for_others(counts: Int64, clusters: Int64) -> Int64:
    """The place of each cluster in the order, with one probe less.

    That is its place by the counts of the queries but one that probed it, where that query's other
    clusters keep their places. (nlist,) int64.
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

"""Starts the hot shard: opens its device, and chooses the clusters that it holds at first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import structlog

from carpool.clock import Clock
from carpool.disk.index import OpenIndex
from carpool.disk.rotation import read_rotation
from carpool.errors import RetryableError
from carpool.telemetry.metrics import Metrics
from searcher.codes.load import ResidentCodes
from searcher.codes.source import CodeSource
from searcher.measure_times import BatchScans, measure_times
from searcher.plan.hot_set import HotSetChoice, Int64, choose_hot_set, largest_hot_set
from searcher.plan.hot_swaps import HotSwaps, decayed_counts
from searcher.plan.search_times import SearchTimes, fit_search_times
from searcher.settings import SearcherSettings
from searcher.shard.cluster_rows import ClusterRowsReader
from searcher.shard.device import ShardNumbers
from searcher.shard.hot_shard import HotShard
from searcher.shard.open import open_device
from searcher.shard.recent_probes import RecentProbes, RecentQuery
from searcher.store.files import SegmentFiles

_log = structlog.get_logger(__name__)

RAM_SHARE = 8
"""By default a shard in memory takes this part of `budget_bytes`."""
NUMBERS: tuple[ShardNumbers, ...] = ("float16", "sq8")
"""In the order of preference: the second holds twice as many clusters."""


def budget_bytes_of(settings: SearcherSettings) -> int:
    """Returns what the hot shard takes of `budget_bytes`: nothing where it is on a GPU."""
    if settings.shard != "ram":
        return 0
    return settings.shard_bytes_max or settings.budget_bytes // RAM_SHARE


def open_shard(
    index: OpenIndex,
    codes: CodeSource,
    settings: SearcherSettings,
    metrics: Metrics,
    recent: RecentProbes,
    clock: Clock,
) -> HotShard | None:
    """Returns the hot shard, which loads its first clusters; None: there is none, or none needed.

    Blocks for some seconds, not for the loads. Raises `ConfigError` where there is no such device.
    """
    if settings.shard == "none":
        return None
    nlist = index.manifest.nlist
    rotation = read_rotation(index.dir, index.manifest)
    bytes_max = settings.shard_bytes_max or budget_bytes_of(settings) or _free_gpu_bytes()
    queries = [one for one in recent(index.manifest.index_version) if one.clusters.max() < nlist]
    probes = [one.clusters for one in queries]
    times = _times(settings, codes, queries, clock)

    open_with = partial(open_device, settings.shard, nlist=nlist, rotation=rotation)
    for numbers in NUMBERS:
        device = open_with(numbers, bytes_max=bytes_max)
        sizes = np.array([device.size_bytes(count) for count in codes.row_counts.tolist()])
        choice = _choose(settings, probes, sizes, times, device.capacity_bytes)
        if choice.meets or numbers == NUMBERS[-1]:
            break
        device.close()
    clusters_bytes = device.capacity_bytes
    if times is not None and choice.meets:
        device.close()  # what the target does not need is for others
        clusters_bytes = choice.size_bytes
        if clusters_bytes:
            beside_bytes = bytes_max - device.capacity_bytes
            device = open_with(numbers, bytes_max=clusters_bytes + beside_bytes)
    _report(settings, choice, numbers, len(probes), metrics)
    if not clusters_bytes:
        return None
    return HotShard(
        device,
        ClusterRowsReader(index, SegmentFiles(index.segment_paths, settings.direct_io)),
        HotSwaps(sizes, clusters_bytes, choice.clusters, decayed_counts(probes, nlist)),
        choice.clusters,
        codes.first_rows,
        metrics,
    )


def _free_gpu_bytes() -> int:
    """Returns what the GPU may give where no number is set: half of what is free."""
    from searcher.shard.gpu import free_gpu_bytes

    return free_gpu_bytes() // 2


def _times(
    settings: SearcherSettings,
    codes: CodeSource,
    queries: Sequence[RecentQuery],
    clock: Clock,
) -> SearchTimes | None:
    """Measures how long searches take; None: no target is set, or it cannot be known."""
    if not settings.shard_target_ms and not settings.shard_queries_per_s:
        return None
    if not queries or not isinstance(codes, ResidentCodes):
        _log.warning(
            "the hot shard takes all of its bytes, because it is not known how few meet its target",
            reason="codes are paged" if queries else "the log has no earlier questions",
        )
        return None
    # Only of real questions: a centroid is so near to its rows that its scan takes half the time.
    vectors = np.stack([one.vector for one in queries])
    probes = [one.clusters for one in queries]
    with BatchScans(codes.scanner, codes.codec, clock, settings.scoring_threads) as scans:
        samples = measure_times(scans, vectors, probes, clock)
    try:
        return fit_search_times(samples, scans.threads)
    except RetryableError as error:
        _log.warning("the hot shard takes all of its bytes", reason=str(error))
        return None


def _choose(
    settings: SearcherSettings,
    probes: Sequence[Int64],
    sizes: Int64,
    times: SearchTimes | None,
    bytes_max: int,
) -> HotSetChoice:
    if times is None:
        return largest_hot_set(probes, sizes, bytes_max)
    return choose_hot_set(
        probes,
        sizes,
        times,
        target_us=1_000 * settings.shard_target_ms,
        queries_per_s=settings.shard_queries_per_s,
        bytes_max=bytes_max,
    )


def _report(
    settings: SearcherSettings,
    choice: HotSetChoice,
    numbers: ShardNumbers,
    questions: int,
    metrics: Metrics,
) -> None:
    metrics.searcher.shard_hit_rate_expected.set(choice.mean_hit_rate)
    _log.info(
        "hot shard",
        device=settings.shard,
        numbers=numbers,
        clusters=len(choice.clusters),
        size_bytes=choice.size_bytes,
        hit_rate=round(choice.mean_hit_rate, 3),
        questions=questions,
        reason=choice.reason,
    )

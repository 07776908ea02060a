"""Starts the hot shard: opens its device, which is filled while questions come."""

from __future__ import annotations

import numpy as np
import structlog

from carpool.disk.index import OpenIndex
from carpool.disk.rotation import read_rotation
from carpool.telemetry.metrics import Metrics
from searcher.codes.source import CodeSource
from searcher.plan.hot_swaps import HotSwaps
from searcher.settings import SearcherSettings
from searcher.shard.cluster_rows import ClusterRowsReader
from searcher.shard.device import numbers_for
from searcher.shard.hot_shard import HotShard
from searcher.shard.open import open_device
from searcher.store.files import SegmentFiles

_log = structlog.get_logger(__name__)

RAM_SHARE = 8
"""By default a shard in memory takes this part of `budget_bytes`."""


def budget_bytes_of(settings: SearcherSettings) -> int:
    """Returns what the hot shard takes of `budget_bytes`: nothing where it is on a GPU."""
    if settings.shard != "ram":
        return 0
    return settings.shard_bytes_max or settings.budget_bytes // RAM_SHARE


def open_shard(
    index: OpenIndex, codes: CodeSource, settings: SearcherSettings, metrics: Metrics
) -> HotShard | None:
    """Returns the hot shard, still empty; None where there is none.

    Blocks for a second. Raises `ConfigError` where there is no such device.
    """
    if settings.shard == "none":
        return None
    bytes_max = settings.shard_bytes_max or budget_bytes_of(settings) or _free_gpu_bytes()
    numbers = numbers_for(index.manifest.row_count, index.manifest.dimension, bytes_max)
    device = open_device(
        settings.shard,
        numbers,
        nlist=index.manifest.nlist,
        rotation=read_rotation(index.dir, index.manifest),
        bytes_max=bytes_max,
    )
    sizes = np.array([device.size_bytes(count) for count in codes.row_counts.tolist()])
    _log.info(
        "hot shard",
        device=settings.shard,
        numbers=numbers,
        capacity_bytes=device.capacity_bytes,
        of_all=round(min(1.0, device.capacity_bytes / max(1, int(sizes.sum()))), 3),
    )
    return HotShard(
        device,
        ClusterRowsReader(index, SegmentFiles(index.segment_paths, settings.direct_io)),
        HotSwaps(sizes, device.capacity_bytes),
        codes.first_rows,
        metrics,
    )


def _free_gpu_bytes() -> int:
    """Returns what the GPU may give where no number is set: half of what is free."""
    from searcher.shard.gpu import free_gpu_bytes

    return free_gpu_bytes() // 2

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
from searcher.store.files import SegmentFiles

_log = structlog.get_logger(__name__)

_DEVICES = {"gpu": "cuda", "ram": "cpu"}
"""As PyTorch names them."""


def open_shard(
    index: OpenIndex, codes: CodeSource, settings: SearcherSettings, metrics: Metrics
) -> HotShard | None:
    """Returns the hot shard, still empty; None where there is none.

    Blocks for a second. Raises `ConfigError` where there is no such device.
    """
    if not settings.shard_bytes:
        return None
    from searcher.shard.gpu import GpuShard  # PyTorch takes long to import

    bytes_max = settings.shard_bytes
    numbers = numbers_for(index.manifest.row_count, index.manifest.dimension, bytes_max)
    device = GpuShard(
        numbers,
        nlist=index.manifest.nlist,
        rotation=read_rotation(index.dir, index.manifest),
        bytes_max=bytes_max,
        device=_DEVICES[settings.shard],
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
        tier=settings.shard,
    )

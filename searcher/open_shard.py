"""Starts the hot shard: opens its device, which is filled while questions come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import structlog

from carpool.disk.index import OpenIndex
from carpool.disk.rotation import read_rotation
from carpool.telemetry.metrics import Metrics
from searcher.codes.source import CodeSource
from searcher.plan.gpu_blocks import LIBRARY_BYTES, holds_all
from searcher.plan.hot_swaps import HotSwaps
from searcher.settings import SearcherSettings
from searcher.shard.cluster_rows import ClusterRowsReader
from searcher.shard.device import ShardDevice, ShardNumbers
from searcher.shard.hot_shard import HotShard
from searcher.store.files import SegmentFiles

_log = structlog.get_logger(__name__)


def open_shard(
    index: OpenIndex, codes: CodeSource, settings: SearcherSettings, metrics: Metrics
) -> HotShard | None:
    """Returns the hot shard, still empty; None where there is none.

    Blocks for a second. Raises `ConfigError` where there is no such device.
    """
    if not settings.shard_bytes:
        return None
    device = _open_device(index, codes.row_counts.tolist(), settings)
    sizes = np.array([device.size_bytes(count) for count in codes.row_counts.tolist()])
    _log.info(
        "hot shard",
        device=settings.shard,
        numbers=device.codec,
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


def _open_device(
    index: OpenIndex, row_counts: Sequence[int], settings: SearcherSettings
) -> ShardDevice:
    """Numbers take 2 bytes where all of the index fits so, else 1: twice the clusters fit."""
    from searcher.shard.gpu import GpuShard  # PyTorch takes long to import

    dimension, bytes_max = index.manifest.dimension, settings.shard_bytes
    is_gpu = settings.shard == "gpu"
    room_bytes = bytes_max if is_gpu else bytes_max + LIBRARY_BYTES  # which are of CUDA
    fits = holds_all(room_bytes, row_counts, dimension=dimension, stored_bytes=2)
    numbers: ShardNumbers = "float16" if fits else "sq8"
    return GpuShard(
        numbers,
        nlist=index.manifest.cluster_count,
        rotation=read_rotation(index.dir, index.manifest),
        bytes_max=bytes_max,
        device="cuda" if is_gpu else "cpu",
    )

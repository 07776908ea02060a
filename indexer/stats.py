"""What is in an index, in numbers: rows, clusters and how uneven they are, bytes, model, fingerprints."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from carpool.disk.index import check_sizes
from carpool.disk.manifest import read_manifest
from carpool.disk.segment import read_extents


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How a number is spread over the clusters."""

    min: int
    p50: int
    p95: int
    max: int
    mean: float


class IndexStats(msgspec.Struct, frozen=True, kw_only=True):
    """An index in numbers. `read_latency_us` is None where the clusters were not profiled."""

    format: str
    index_version: str
    row_count: int
    dimension: int
    nlist: int
    nprobe_default: int
    embedding_model: str
    embedding_model_name: str
    centroids_fingerprint: str
    codec: str
    cluster_rows: Spread
    cluster_size_bytes: Spread
    clusters_empty: int
    read_latency_us: Spread | None
    files_bytes: dict[str, int]
    size_bytes: int


def index_stats(index_dir: Path) -> IndexStats:
    """Returns the numbers of the index at `index_dir`, from its manifest and its extents. Does not read the clusters.

    Raises `ConfigError` where there is no index of this format, `CorruptionError` where its small files are damaged.
    """
    manifest = read_manifest(index_dir)
    check_sizes(index_dir, manifest)
    extents = read_extents(index_dir, manifest)
    rows = [extent.row_count for extent in extents]
    files_bytes = {name: entry.size_bytes for name, entry in manifest.files.items()}
    return IndexStats(
        format=manifest.format,
        index_version=manifest.index_version,
        row_count=manifest.row_count,
        dimension=manifest.dimension,
        nlist=manifest.nlist,
        nprobe_default=manifest.nprobe_default,
        embedding_model=manifest.embedding_model,
        embedding_model_name=manifest.embedding_model_name,
        centroids_fingerprint=manifest.centroids_fingerprint,
        codec=manifest.codec,
        cluster_rows=_spread(rows),
        cluster_size_bytes=_spread([extent.size_bytes for extent in extents]),
        clusters_empty=rows.count(0),
        read_latency_us=_spread(list(manifest.read_latency_us)) if manifest.read_latency_us else None,
        files_bytes=files_bytes,
        size_bytes=sum(files_bytes.values()),
    )


def _spread(numbers: list[int]) -> Spread:
    low, median, high, top = (int(number) for number in np.percentile(numbers, (0, 50, 95, 100), method="lower"))
    return Spread(min=low, p50=median, p95=high, max=top, mean=round(float(np.mean(numbers)), 1))

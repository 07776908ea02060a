"""Describes an index in numbers: rows, clusters, their sizes, bytes, model, fingerprints."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from carpool.disk.extent_table import read_extents
from carpool.disk.index import check_sizes
from carpool.disk.manifest import read_manifest


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of a number over the clusters."""

    min: int
    p50: int
    p95: int
    max: int
    mean: float


class IndexIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What an index is: its format, its model, its shape."""

    format: str
    index_version: str
    row_count: int
    dimension: int
    nlist: int
    nprobe_default: int
    embedding_model: str
    embedding_model_name: str
    centroids_fingerprint: str
    codes: tuple[str, ...]
    vector_dtype: str
    page_bytes: int
    rows_per_page: int


class IndexStats(IndexIdentity, frozen=True, kw_only=True):
    """An index in numbers.

    `page_use`: the share of the segments that vectors and their row numbers fill. The factors
    divide the largest and the smallest cluster by the mean. `cluster_skew`: the mean size of the
    cluster of a random passage, divided by the mean size of all clusters; 1 if all are equal.
    """

    page_use: float
    segment_count: int
    cluster_rows: Spread
    cluster_rows_max_factor: float
    cluster_rows_min_factor: float
    cluster_skew: float
    cluster_size_bytes: Spread
    clusters_empty: int
    files_bytes: dict[str, int]
    size_bytes: int


def index_stats(index_dir: Path) -> IndexStats:
    """Returns the numbers of an index from its manifest and its extents; reads no cluster.

    Raises `ConfigError` where there is no index of this format, `CorruptionError` where its small
    files are damaged.
    """
    manifest = read_manifest(index_dir)
    check_sizes(index_dir, manifest)
    extents = read_extents(index_dir, manifest)
    rows = [extent.row_count for extent in extents]
    layout = manifest.layout()
    mean = manifest.row_count / manifest.nlist
    clusters_bytes = sum(extent.size_bytes for extent in extents)
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
        codes=tuple(one.codec for one in manifest.codes),
        vector_dtype=layout.vector_dtype,
        page_bytes=layout.page_bytes,
        rows_per_page=layout.rows_per_page,
        page_use=round(manifest.row_count * layout.row_bytes / clusters_bytes, 3),
        segment_count=manifest.segment_count,
        cluster_rows=_spread(rows),
        cluster_rows_max_factor=round(max(rows) / mean, 2),
        cluster_rows_min_factor=round(min(rows) / mean, 2),
        cluster_skew=round(sum(count * count for count in rows) / manifest.row_count / mean, 2),
        cluster_size_bytes=_spread([extent.size_bytes for extent in extents]),
        clusters_empty=rows.count(0),
        files_bytes=files_bytes,
        size_bytes=sum(files_bytes.values()),
    )


def _spread(numbers: list[int]) -> Spread:
    low, median, high, top = (
        int(number) for number in np.percentile(numbers, (0, 50, 95, 100), method="lower")
    )
    return Spread(min=low, p50=median, p95=high, max=top, mean=round(float(np.mean(numbers)), 1))

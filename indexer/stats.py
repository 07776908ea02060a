"""Describes an index in numbers: rows, clusters, their sizes, bytes, model, fingerprints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from carpool.codes.kernel import kernel_in_use
from carpool.disk.extent_table import read_extents
from carpool.disk.index import check_sizes
from carpool.disk.manifest import BaseFacts, Manifest, read_manifest


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of a number over the clusters."""

    min: int
    p50: int
    p95: int
    max: int
    mean: float


class IndexStats(msgspec.Struct, frozen=True, kw_only=True):
    """An index in numbers.

    `cluster_skew`: the mean size of the cluster of a random passage, divided by the mean size of
    all clusters; 1 if all are equal. `far_rows`: those of the zero cluster. `is_measured`: with
    questions, which chose `nprobe_default`. `kernel`: what scans codes on this machine, and why it
    is NumPy where it is.
    """

    format: str
    index_version: str
    row_count: int
    dimension: int
    vector_dtype: str
    nlist: int
    nprobe_default: int
    is_measured: bool
    embedding_model: str
    embedding_model_name: str
    centroids_fingerprint: str
    codes: tuple[str, ...]
    base: BaseFacts | None
    kernel: str
    cluster_rows: Spread
    far_rows: int
    cluster_skew: float
    files_bytes: dict[str, int]
    size_bytes: int


SAME = set(IndexStats.__struct_fields__) & set(Manifest.__struct_fields__) - {"codes"}
"""What the manifest says."""


def index_stats(index_dir: Path) -> IndexStats:
    """Returns the numbers of an index from its manifest and its extents; reads no cluster.

    Raises `ConfigError` where there is no index of this format, `CorruptionError` where its small
    files are damaged.
    """
    manifest = read_manifest(index_dir)
    check_sizes(index_dir, manifest)
    rows = [extent.row_count for extent in read_extents(index_dir, manifest)]
    mean = manifest.row_count / len(rows)
    low, median, high, top = map(int, np.percentile(rows, (0, 50, 95, 100), method="lower"))
    files_bytes = {name: entry.size_bytes for name, entry in manifest.files.items()}
    same: dict[str, Any] = {name: getattr(manifest, name) for name in SAME}
    return IndexStats(
        **same,
        is_measured=manifest.recall is not None,
        codes=tuple(one.codec for one in manifest.codes),
        kernel=kernel_in_use(),
        cluster_rows=Spread(min=low, p50=median, p95=high, max=top, mean=round(mean, 1)),
        far_rows=sum(rows[manifest.nlist :]),
        cluster_skew=round(sum(count * count for count in rows) / len(rows) / mean**2, 2)
        if mean
        else 1.0,
        files_bytes=files_bytes,
        size_bytes=sum(files_bytes.values()),
    )

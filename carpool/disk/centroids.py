"""The centroids: a raw float32 file, its fingerprint, and which clusters a query probes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from carpool.arrays import Float32
from carpool.disk.files import damage, write_atomically
from carpool.disk.manifest import Manifest

CENTROIDS_NAME = "centroids.f32"
PROBE_CHUNK_ROWS = 256
"""Queries scored in one call: limits the scores in memory to 256 * nlist float32."""

SQUARED_NORM_MAX = 1.01
"""Rounding included. Larger numbers could make scores infinite, and NaN cannot be ordered."""


def write_centroids(index_dir: Path, centroids: Float32) -> None:
    """Writes centroids: (nlist, dim) float32, row-normalised. Atomic, durable."""
    write_atomically(
        index_dir / CENTROIDS_NAME, np.ascontiguousarray(centroids, dtype="<f4").tobytes()
    )


def read_centroids(index_dir: Path, manifest: Manifest) -> Float32:
    """Returns (nlist, dim) float32, read-only. Raises `CorruptionError` or `ConfigError`."""
    size_bytes = manifest.nlist * manifest.dimension * 4
    content = manifest.read(index_dir, CENTROIDS_NAME, size_bytes)
    centroids: Float32 = np.frombuffer(content, dtype="<f4").reshape(manifest.nlist, -1)
    with np.errstate(over="ignore", invalid="ignore"):
        squared_norms = np.einsum("ij,ij->i", centroids, centroids)
        wrong = np.flatnonzero(~(squared_norms <= SQUARED_NORM_MAX))
    if wrong.size:
        what = f"is wrong: the centroid of cluster {wrong[0]} is not normalised, or not finite"
        raise damage(index_dir / CENTROIDS_NAME, what, int(wrong[0]) * manifest.dimension * 4)
    return centroids


def centroids_fingerprint(centroids: Float32) -> str:
    """Returns 16 hex digits of a SHA-256 over shape and numbers."""
    digest = hashlib.sha256(repr(centroids.shape).encode())
    digest.update(np.ascontiguousarray(centroids, dtype="<f4").data)
    return digest.hexdigest()[:16]


def probe(centroids: Float32, queries: Float32, nprobe: int) -> npt.NDArray[np.int32]:
    """Returns C(q) of each query: (n, min(nprobe, nlist)) int32, the largest inner product first.

    `centroids`: (nlist, dim) float32; `queries`: (n, dim) float32. Ties are ordered by id. Costs a
    matrix product, and for each query a selection among nlist scores and a sort of the selected
    ones. Raises `ValueError` where shapes do not fit or nprobe is below 1.
    """
    if nprobe < 1:
        raise ValueError(f"nprobe is {nprobe}; at least one cluster must be probed")
    if queries.ndim != 2 or queries.shape[1] != centroids.shape[1]:
        raise ValueError(f"queries have shape {queries.shape}; expected (n, {centroids.shape[1]})")
    count = min(nprobe, centroids.shape[0])
    probes = np.empty((len(queries), count), dtype=np.int32)
    for start in range(0, len(queries), PROBE_CHUNK_ROWS):
        scores = queries[start : start + PROBE_CHUNK_ROWS] @ centroids.T
        np.negative(scores, out=scores)
        for row, each in enumerate(scores, start):
            probes[row] = _least(each, count)
    return probes


def _least(scores: Float32, count: int) -> npt.NDArray[np.intp]:
    """Returns the positions of the `count` least scores, as a stable sort orders them.

    Five times as fast as that sort.
    """
    # More than `count` are near where several scores equal the last one.
    near = np.flatnonzero(scores <= np.partition(scores, count - 1)[count - 1])
    return near[np.argsort(scores[near], kind="stable")[:count]]

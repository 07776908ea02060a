"""Spherical k-means and the nearest centroid, by FAISS; the only module that loads it."""

from __future__ import annotations

import os
from types import ModuleType

import numpy as np
import numpy.typing as npt

from carpool.arrays import Float32

NEAREST_CHUNK_ROWS = 8192
CORE_TYPES = (("SkylakeX", {"AVX512_SKX", "X86_V4"}), ("Haswell", {"AVX2", "X86_V3"}))
"""The kernels of OpenBLAS, best first, with NumPy's names of the instructions that they need."""


def _load_faiss() -> ModuleType:
    """Returns FAISS, which multiplies with the best kernels that this processor has.

    The OpenBLAS in its wheel (0.3.15) takes newer processors for one of 2004: 38 GFLOP/s a core
    instead of 98. It reads the variable when it is loaded; NumPy's own OpenBLAS is loaded already.
    """
    name = "OPENBLAS_CORETYPE"
    config = np.show_config(mode="dicts")["SIMD Extensions"]
    known = {*config.get("baseline", ()), *config.get("found", ())}
    core_type = next((core for core, needs in CORE_TYPES if needs & known), None)
    is_ours = core_type is not None and name not in os.environ
    if is_ours:
        os.environ[name] = str(core_type)
    try:
        import faiss

        return faiss
    finally:
        if is_ours:
            del os.environ[name]


faiss = _load_faiss()


def use_threads(count: int) -> None:
    """Bounds the threads of all functions here, in the whole process."""
    faiss.omp_set_num_threads(count)


def kmeans(
    rows: Float32, count: int, *, iterations: int, seed: int, start: Float32 | None = None
) -> Float32:
    """Returns (count, dim) float32 centroids of length 1: spherical k-means by inner product."""
    trained = faiss.Kmeans(
        rows.shape[1],
        count,
        niter=iterations,
        spherical=True,
        seed=seed,
        min_points_per_centroid=1,  # no warning for small corpora
        max_points_per_centroid=len(rows),
    )
    trained.train(rows, init_centroids=start)
    return np.array(trained.centroids, dtype=np.float32)


def nearest(rows: Float32, centroids: Float32) -> npt.NDArray[np.int32]:
    """Returns (len(rows),) int32: the nearest centroid of each row, by inner product."""
    quantizer = faiss.IndexFlatIP(centroids.shape[1])
    quantizer.add(centroids)
    clusters = np.empty(len(rows), dtype=np.int32)
    for start in range(0, len(rows), NEAREST_CHUNK_ROWS):
        chunk = rows[start : start + NEAREST_CHUNK_ROWS]
        clusters[start : start + len(chunk)] = quantizer.search(chunk, 1)[1][:, 0]
    return clusters

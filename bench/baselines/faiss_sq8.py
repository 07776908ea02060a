"""FAISS IVF with 8 bits for each number, in memory. What it finds is not re-ranked.

A quarter of the bytes of the rows. Codes are those of the differences from our centroids.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.baselines.contestant import (
    ContestantEntry,
    Float32,
    Int64,
    Limits,
    Preparation,
    SearchData,
)
from bench.baselines.faiss_window import FaissWindow
from carpool.disk.index import OpenIndex

INDEX_NAME = "index.faiss"
PREPARATION_NAME = "faiss-sq8"


def make_codes(data: SearchData, folder: Path) -> None:
    """Writes the codes of all rows, by their numbers.

    Reads the index twice; needs memory for one cluster, and FAISS holds the codes.
    """
    import faiss

    from bench.data.clusters import open_clusters, read_clusters

    view = open_clusters(data.index_dir)
    nlist, dimension = view.centroids.shape
    quantizer = faiss.IndexFlatIP(dimension)
    quantizer.add(np.ascontiguousarray(view.centroids))
    index: Any = faiss.IndexIVFScalarQuantizer(
        quantizer,
        dimension,
        nlist,
        faiss.ScalarQuantizer.QT_8bit,
        faiss.METRIC_INNER_PRODUCT,
    )
    index.sq.train(extremes(view))  # nothing but the range of each number matters
    index.is_trained = True
    pointer = faiss.swig_ptr
    for cluster in read_clusters(view):
        count = len(cluster.rows)
        # Given the cluster: FAISS would look for the nearest centroid, and might find another one.
        assigned = np.full(count, cluster.cluster, np.int64)
        vectors, rows = np.ascontiguousarray(cluster.vectors), np.ascontiguousarray(cluster.rows)
        if count:
            index.add_core(count, pointer(vectors), pointer(rows), pointer(assigned))
    faiss.write_index(index, str(folder / INDEX_NAME))


def extremes(view: OpenIndex) -> Float32:
    """Returns lowest and highest difference from the centroid: (2, dim) float32."""
    from bench.data.clusters import read_clusters

    lowest = np.full(view.manifest.dimension, np.inf, np.float32)
    highest = -lowest
    for cluster in read_clusters(view):
        differences = cluster.vectors - view.centroids[cluster.cluster]
        lowest = np.minimum(lowest, differences.min(axis=0, initial=np.inf))
        highest = np.maximum(highest, differences.max(axis=0, initial=-np.inf))
    return np.stack([lowest, highest])


class FaissSq8(FaissWindow):
    """A scan of the codes of the probed clusters."""

    def open(self, data: SearchData, limits: Limits) -> None:
        """Loads the codes."""
        super().open(data, limits)
        self._centroids = self._index.quantizer.reconstruct_n(0, self._index.nlist)

    def _path(self, data: SearchData) -> Path:
        return data.prepared_dir / PREPARATION_NAME / INDEX_NAME

    def _find(self, vectors: Float32, probes: Int64) -> Iterator[Int64]:
        # FAISS adds the scores of the centroids to those of the differences.
        of_centroids = np.take_along_axis(vectors @ self._centroids.T, probes, axis=1)
        self._index.nprobe = probes.shape[1]
        _, rows = self._index.search_preassigned(vectors, self._top_k, probes, of_centroids)
        return iter(rows)


ENTRIES = (
    ContestantEntry(
        name="faiss-sq8",
        summary="FAISS IVF with 8 bits for each number in memory, a call for each window, not "
        "re-ranked",
        is_exact=False,
        make=FaissSq8,
        preparation=Preparation(name=PREPARATION_NAME, make=make_codes),
    ),
)

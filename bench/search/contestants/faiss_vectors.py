"""FAISS over the vectors in memory, without a limit: IVF-Flat over our clusters, and HNSW.

HNSW is a graph over all rows. It knows no clusters, and does not use the probes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.search.contestants.contestant import (
    ContestantEntry,
    Float32,
    Int64,
    Limits,
    SearchData,
)
from bench.search.contestants.faiss_window import INDEX_NAME, FaissWindow, quantizer_of

NEIGHBOURS, EF_CONSTRUCTION = 32, 200
EF_SEARCH = 96
"""Rows that a search of the graph keeps. A larger set needs more."""


def make_lists(data: SearchData, folder: Path) -> None:
    """Writes an index with the clusters as its lists. FAISS holds all rows."""
    import faiss

    from bench.data.clusters import open_clusters, read_clusters

    view = open_clusters(data.index_dir)
    nlist, dimension = view.centroids.shape
    quantizer = quantizer_of(view.centroids)
    index: Any = faiss.IndexIVFFlat(quantizer, dimension, nlist, faiss.METRIC_INNER_PRODUCT)
    index.is_trained = True
    for cluster in read_clusters(view):
        vectors = np.ascontiguousarray(cluster.vectors, "<f4").reshape(-1).view(np.uint8)
        rows = np.ascontiguousarray(cluster.rows, "<i8")
        pointers = faiss.swig_ptr(rows), faiss.swig_ptr(vectors)
        index.invlists.add_entries(cluster.cluster, len(rows), *pointers)
    index.ntotal = view.manifest.row_count
    faiss.write_index(index, str(folder / INDEX_NAME))


def make_graph(data: SearchData, folder: Path) -> None:
    """Writes a graph over all rows, cluster after cluster, by their numbers."""
    import faiss

    from bench.data.clusters import open_clusters, read_clusters

    view = open_clusters(data.index_dir)
    graph = faiss.IndexHNSWFlat(view.manifest.dimension, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = EF_CONSTRUCTION
    index: Any = faiss.IndexIDMap(graph)
    for cluster in read_clusters(view):
        index.add_with_ids(cluster.vectors, cluster.rows)
    faiss.write_index(index, str(folder / INDEX_NAME))


class FaissIvf(FaissWindow):
    """A scan of the vectors of the probed clusters."""

    name = "faiss-memory"

    def _find(self, vectors: Float32, probes: Int64) -> Iterator[Int64]:
        self._index.nprobe = probes.shape[1]  # which FAISS compares with the shape
        _, rows = self._index.search_preassigned(vectors, self._top_k, probes, None)
        return iter(rows)


class FaissHnsw(FaissWindow):
    """A search of the graph with `EF_SEARCH`."""

    name = "faiss-hnsw"

    def open(self, data: SearchData, limits: Limits) -> None:
        """Loads graph and rows."""
        import faiss

        super().open(data, limits)
        graph: Any = faiss.downcast_index(self._index.index)
        graph.hnsw.efSearch = max(EF_SEARCH, data.top_k)

    def _find(self, vectors: Float32, probes: Int64) -> Iterator[Int64]:
        return iter(self._index.search(vectors, self._top_k)[1])


ENTRIES = (
    ContestantEntry(
        name=FaissIvf.name,
        is_exact=True,
        is_limited=False,
        make=FaissIvf,
        prepare=make_lists,
    ),
    ContestantEntry(
        name=FaissHnsw.name,
        is_exact=False,
        is_limited=False,
        make=FaissHnsw,
        prepare=make_graph,
    ),
)

"""Codes that the kernel pages: FAISS's RaBitQ in memory-mapped lists, and rows mapped as well.

What one gets without a cache of clusters: the page cache decides what stays. Codes of 2 bits
propose rows, which are scored exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.baselines.contestant import (
    AskedWindow,
    ContestantCounters,
    ContestantEntry,
    Float32,
    FoundRows,
    Int64,
    Limits,
    Preparation,
    SearchData,
)

PREPARATION_NAME = "mmap-codes"
LISTS_NAME = "codes.ivfdata"
INDEX_NAME = "codes.faiss"
VECTORS_NAME = "vectors.f32"
ROWS_NAME = "rows.npy"
ROTATION_NAME = "rotation.npy"
BITS = 2
CANDIDATES = 150
"""Rows that are scored for each query: of 2 bits, what Carpool reads for the same recall."""
SEED = 0


def make_codes(data: SearchData, folder: Path) -> None:
    """Writes codes as on-disk lists, and all rows. Needs memory for all codes."""
    import faiss

    from bench.data.clusters import open_clusters, read_clusters

    opened = open_clusters(data.index_dir)
    nlist, dimension = opened.centroids.shape
    random = np.random.default_rng(SEED).standard_normal((dimension, dimension))
    rotation = np.linalg.qr(random)[0].astype(np.float32)
    quantizer = faiss.IndexFlatIP(dimension)
    quantizer.add(np.ascontiguousarray(opened.centroids @ rotation))
    index: Any = faiss.IndexIVFRaBitQ(
        quantizer, dimension, nlist, faiss.METRIC_INNER_PRODUCT, True, BITS
    )
    index.is_trained = True
    rows: list[Int64] = []
    first = 0
    with (folder / VECTORS_NAME).open("wb") as file:
        for cluster in read_clusters(opened):
            count = len(cluster.rows)
            if count:
                file.write(np.ascontiguousarray(cluster.vectors, "<f4").data)
                assigned = np.full(count, cluster.cluster, np.int64)
                numbers = np.arange(first, first + count, dtype=np.int64)
                rotated = np.ascontiguousarray(cluster.vectors @ rotation)
                pointer = faiss.swig_ptr
                index.add_core(count, pointer(rotated), pointer(numbers), pointer(assigned))
            rows.append(cluster.rows)
            first += count
    lists = faiss.OnDiskInvertedLists(nlist, index.code_size, str(folder / LISTS_NAME))
    lists.merge_from_1(index.invlists)
    index.replace_invlists(lists)
    faiss.write_index(index, str(folder / INDEX_NAME))
    np.save(folder / ROWS_NAME, np.concatenate(rows))
    np.save(folder / ROTATION_NAME, rotation)


class MmapCodes:
    """One call of FAISS for each window, then the rows of all its queries."""

    def open(self, data: SearchData, limits: Limits) -> None:
        """Maps codes and rows."""
        import faiss

        faiss.omp_set_num_threads(limits.threads)
        folder = data.prepared_dir / PREPARATION_NAME
        flags = faiss.IO_FLAG_ONDISK_SAME_DIR | faiss.IO_FLAG_READ_ONLY
        self._index: Any = faiss.read_index(str(folder / INDEX_NAME), flags)
        self._rows: Int64 = np.load(folder / ROWS_NAME, mmap_mode="r")
        self._rotation: Float32 = np.load(folder / ROTATION_NAME)
        dimension = data.queries.shape[1]
        self._vectors: Float32 = np.memmap(folder / VECTORS_NAME, "<f4", "r").reshape(-1, dimension)
        self._top_k = data.top_k

    def search(self, window: AskedWindow) -> Iterator[FoundRows]:
        """Answers the window."""
        vectors = np.stack([query.vector for query in window.queries])
        probes = np.stack([query.clusters for query in window.queries]).astype(np.int64)
        self._index.nprobe = probes.shape[1]
        _, found = self._index.search_preassigned(
            np.ascontiguousarray(vectors @ self._rotation), CANDIDATES, probes, None
        )
        for query, numbers in zip(window.queries, found, strict=True):
            candidates = np.sort(numbers[numbers >= 0])
            scores = self._vectors[candidates] @ query.vector
            rows = self._rows[candidates]
            best = np.lexsort((rows, -scores))[: self._top_k]
            yield FoundRows(query.number, rows[best])

    def counters(self) -> ContestantCounters:
        """Returns nothing: the kernel reads."""
        return ContestantCounters()

    def close(self) -> None:
        """Frees the index."""
        self._index = None


ENTRIES = (
    ContestantEntry(
        name="mmap-codes",
        summary=f"FAISS RaBitQ, {BITS} bits, lists and rows mapped (mmap), {CANDIDATES} rows a "
        "query, a call for each window",
        is_exact=False,
        make=MmapCodes,
        preparation=Preparation(name=PREPARATION_NAME, make=make_codes),
    ),
)

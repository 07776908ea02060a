"""FAISS IVF-Flat, in memory and with memory-mapped `OnDiskInvertedLists`.

Centroids, assignment and probes are those of our index. All variants share one file of lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.baselines.contestant import (
    AskedWindow,
    ContestantCounters,
    ContestantEntry,
    Float32,
    FoundRows,
    Int32,
    Int64,
    Limits,
    Preparation,
    SearchData,
)

LISTS_NAME = "lists.ivfdata"
INDEX_NAME = "index.faiss"
PREPARATION_NAME = "faiss"


def make_lists(data: SearchData, folder: Path) -> None:
    """Writes the clusters of the index as FAISS's on-disk inverted lists, and an index over them.

    Reads the index once; needs memory for one cluster.
    """
    import faiss

    from bench.data.clusters import open_clusters, read_clusters

    view = open_clusters(data.index_dir)
    nlist, dimension = view.centroids.shape
    lists = write_lists(
        folder / LISTS_NAME,
        nlist,
        dimension * 4,
        (
            RowList(one.cluster, np.ascontiguousarray(one.vectors, dtype="<f4"), one.rows)
            for one in read_clusters(view)
        ),
    )
    quantizer = faiss.IndexFlatIP(dimension)
    quantizer.add(np.ascontiguousarray(view.centroids))
    index = faiss.IndexIVFFlat(quantizer, dimension, nlist, faiss.METRIC_INNER_PRODUCT)
    index.is_trained = True
    index.ntotal = view.manifest.row_count
    index.replace_invlists(lists)
    faiss.write_index(index, str(folder / INDEX_NAME))


class RowList(NamedTuple):
    """A cluster as FAISS stores it: `codes`, (n, ...) of any dtype, of the row numbers `rows`."""

    cluster: int
    codes: npt.NDArray[Any]
    rows: Int64


def write_lists(path: Path, nlist: int, code_bytes: int, clusters: Iterable[RowList]) -> Any:
    """Writes FAISS's on-disk inverted lists and returns them.

    `clusters` in ascending order, as set_all_lists_sizes expects them; `code_bytes`: of a row.
    """
    import faiss

    sizes = np.zeros(nlist, dtype=np.uint64)
    with path.open("wb") as file:
        for cluster in clusters:
            sizes[cluster.cluster] = len(cluster.rows)
            file.write(cluster.codes.data)
            file.write(np.ascontiguousarray(cluster.rows, dtype="<i8").data)
    lists = faiss.OnDiskInvertedLists(nlist, code_bytes, str(path))
    lists.set_all_lists_sizes(faiss.swig_ptr(sizes))
    lists.totsize = path.stat().st_size
    return lists


class FaissIvf:
    """IVF-Flat. `in_memory`: the lists are loaded by `open`, and a window is answered by one call.

    Else the kernel pages them in, and each query is a call.
    """

    def __init__(self, *, in_memory: bool) -> None:
        self._in_memory = in_memory
        self._index: Any = None
        self._lists: Any = None
        self._top_k = 0

    def open(self, data: SearchData, limits: Limits) -> None:
        """Maps the lists, or loads them."""
        import faiss

        faiss.omp_set_num_threads(limits.threads)
        folder = data.prepared_dir / PREPARATION_NAME
        flags = faiss.IO_FLAG_ONDISK_SAME_DIR | faiss.IO_FLAG_READ_ONLY
        index: Any = faiss.read_index(str(folder / INDEX_NAME), flags)
        if self._in_memory:
            mapped = index.invlists
            lists: Any = faiss.ArrayInvertedLists(index.nlist, mapped.code_size)
            mapped.copy_subset_to(lists, mapped.SUBSET_TYPE_ID_RANGE, 0, 1 << 62)  # all of them
            index.replace_invlists(lists)
            self._lists = lists  # the index does not keep it alive
        self._index = index
        self._top_k = data.top_k

    def search(self, window: AskedWindow) -> Iterator[FoundRows]:
        """Answers the window by one call of FAISS, or each query by one."""
        queries = window.queries
        for batch in [queries] if self._in_memory else [(query,) for query in queries]:
            vectors = np.stack([query.vector for query in batch])
            probes = np.stack([query.clusters for query in batch])
            ids, _ = self.find(vectors, probes, self._top_k)
            for query, found in zip(batch, ids, strict=True):
                yield FoundRows(query.number, found[found >= 0])

    def find(self, vectors: Float32, probes: Int32, top_k: int) -> tuple[Int64, Float32]:
        """Returns ids (n, top_k) int64, -1 where there is none, and scores (n, top_k) float32.

        `vectors`: (n, dim) float32; `probes`: (n, nprobe) int32. Best first.
        """
        self._index.nprobe = probes.shape[1]  # which FAISS compares with the shape
        scores, ids = self._index.search_preassigned(vectors, top_k, probes.astype(np.int64), None)
        return ids, scores

    def counters(self) -> ContestantCounters:
        """Returns nothing: the kernel reads for FAISS."""
        return ContestantCounters()

    def close(self) -> None:
        """Frees the index."""
        self._index = self._lists = None


PREPARATION = Preparation(name=PREPARATION_NAME, make=make_lists)
_IN_MEMORY = "FAISS IVF-Flat in memory, a call for each window, no limit: exact by definition"
_ON_DISK = "FAISS OnDiskInvertedLists (mmap), a call for each query"
ENTRIES = tuple(
    ContestantEntry(
        name=name,
        summary=summary,
        is_exact=True,
        is_limited=not in_memory,
        make=partial(FaissIvf, in_memory=in_memory),
        preparation=PREPARATION,
    )
    for name, summary, in_memory in (
        ("faiss-memory", _IN_MEMORY, True),
        ("faiss-ondisk", _ON_DISK, False),
    )
)

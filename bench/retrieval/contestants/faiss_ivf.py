"""FAISS as published: IVF-Flat in memory, and with `OnDiskInvertedLists`, memory-mapped, one by one
and batched.

Both have the centroids and the assignment of our index, and are given the probes that all are
given. They share one file of inverted lists, made once for each index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.retrieval.contestant import (
    Arrivals,
    Contestant,
    Counters,
    Dataset,
    Entry,
    Float32,
    Int32,
    Int64,
    Limits,
    Preparation,
    Result,
)

LISTS_NAME = "lists.ivfdata"
INDEX_NAME = "index.faiss"
PREPARATION_NAME = "faiss"


def make_lists(dataset: Dataset, folder: Path) -> None:
    """Writes the clusters of the index as FAISS's on-disk inverted lists, a cluster at a time, and
    the index that names them.

    Costs one read of the index; memory for one cluster.
    """
    import faiss

    from bench.retrieval.dataset import open_view

    view = open_view(dataset.index_dir)
    sizes = np.zeros(view.nlist, dtype=np.uint64)
    path = folder / LISTS_NAME
    with path.open("wb") as file:
        for cluster in view.clusters():  # in ascending order, as set_all_lists_sizes lays them out
            sizes[cluster.cluster] = len(cluster.rows)
            file.write(np.ascontiguousarray(cluster.vectors, dtype="<f4").data)
            file.write(np.ascontiguousarray(cluster.rows, dtype="<i8").data)
    lists = faiss.OnDiskInvertedLists(view.nlist, view.dimension * 4, str(path))
    lists.set_all_lists_sizes(faiss.swig_ptr(sizes))
    lists.totsize = path.stat().st_size
    quantizer = faiss.IndexFlatIP(view.dimension)
    quantizer.add(np.ascontiguousarray(view.centroids))
    index = faiss.IndexIVFFlat(quantizer, view.dimension, view.nlist, faiss.METRIC_INNER_PRODUCT)
    index.is_trained = True
    index.ntotal = view.row_count
    index.replace_invlists(lists)
    faiss.write_index(index, str(folder / INDEX_NAME))


class FaissIvf:
    """IVF-Flat. `in_memory`: the lists are loaded; else the kernel pages them in. `one_by_one`: a
    call for each query.
    """

    def __init__(self, name: str, *, in_memory: bool, one_by_one: bool) -> None:
        self.name = name
        self._in_memory = in_memory
        self._one_by_one = one_by_one
        self._index: Any = None
        self._lists: Any = None
        self._top_k = 0

    def open(self, dataset: Dataset, limits: Limits) -> None:
        """Maps the lists, or loads them."""
        import faiss

        faiss.omp_set_num_threads(limits.threads)
        folder = dataset.prepared_dir / PREPARATION_NAME
        flags = faiss.IO_FLAG_ONDISK_SAME_DIR | faiss.IO_FLAG_READ_ONLY
        index: Any = faiss.read_index(str(folder / INDEX_NAME), flags)
        if self._in_memory:
            mapped = index.invlists
            lists: Any = faiss.ArrayInvertedLists(dataset.nlist, mapped.code_size)
            mapped.copy_subset_to(lists, mapped.SUBSET_TYPE_ID_RANGE, 0, dataset.row_count)
            index.replace_invlists(lists)
            self._lists = lists  # the index does not keep it alive
        index.nprobe = dataset.probes.shape[1]
        self._index = index
        self._top_k = dataset.top_k

    def run(self, arrivals: Arrivals) -> Iterator[Result]:
        """Answers each window by one call of FAISS, or each query by one."""
        while not arrivals.ended:
            window = arrivals.take()
            if window is None:
                continue
            batches = (
                [(query,) for query in window.queries] if self._one_by_one else [window.queries]
            )
            for batch in batches:
                vectors = np.stack([query.vector for query in batch])
                probes = np.stack([query.clusters for query in batch])
                ids, _ = self.search(vectors, probes, self._top_k)
                now_us = arrivals.now_us()
                for query, found in zip(batch, ids, strict=True):
                    yield Result(now_us, query.number, 0, found[found >= 0], True)

    def search(self, vectors: Float32, probes: Int32, top_k: int) -> tuple[Int64, Float32]:
        """Returns ids (n, top_k) int64, -1 where there is none, and scores (n, top_k) float32, best
        first.

        `vectors`: (n, dim) float32; `probes`: (n, nprobe) int32.
        """
        scores, ids = self._index.search_preassigned(vectors, top_k, probes.astype(np.int64), None)
        return ids, scores

    def counters(self) -> Counters:
        """Returns nothing: the kernel reads for FAISS, which cannot know. In memory nothing is read
        after `open`.
        """
        return Counters()

    def close(self) -> None:
        """Lets go of the index."""
        self._index = self._lists = None


def _maker(name: str, *, in_memory: bool, one_by_one: bool) -> Callable[[], Contestant]:
    return lambda: FaissIvf(name, in_memory=in_memory, one_by_one=one_by_one)


PREPARATION = Preparation(name=PREPARATION_NAME, make=make_lists)
ENTRIES = (
    Entry(
        name="faiss-memory",
        summary="FAISS IVF-Flat in memory, a call for each window, without a limit: what exactness "
        "means, and the ceiling",
        is_exact=True,
        is_limited=False,
        make=_maker("faiss-memory", in_memory=True, one_by_one=False),
        preparation=PREPARATION,
    ),
    Entry(
        name="faiss-ondisk",
        summary="FAISS OnDiskInvertedLists (mmap), a call for each query",
        is_exact=True,
        make=_maker("faiss-ondisk", in_memory=False, one_by_one=True),
        preparation=PREPARATION,
    ),
    Entry(
        name="faiss-ondisk-batched",
        summary="FAISS OnDiskInvertedLists (mmap), a call for each window",
        is_exact=True,
        make=_maker("faiss-ondisk-batched", in_memory=False, one_by_one=False),
        preparation=PREPARATION,
    ),
)

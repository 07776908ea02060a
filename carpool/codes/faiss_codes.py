"""Codes of RaBitQ, encoded and scanned by FAISS.

FAISS keeps the codes of a cluster in blocks of 32, each number of 32 vectors together, so that one
instruction looks up all of them (FastScan). The first bit of each number gives a bound; only
vectors that may be among the best are scored with all bits.

Vectors, centroids and queries are rotated by one random rotation before they are encoded: RaBitQ's
error bound holds for rotated vectors. The stored rows are not rotated.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from carpool.codes.codec import BITS_OF, CodeLayout

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]

_M_MMAP_THRESHOLD = -3
_OWN_MAPPING_BYTES = 32 << 10
"""Allocations from this size on have pages of their own."""
NEAREST_FIRST = 10
"""FAISS's scan of one query at a time, its clusters in the order given."""


def return_freed_memory() -> None:
    """Makes the allocator return the memory of codes to the system as soon as they are dropped.

    FAISS allocates up to twice the bytes of a cluster's codes, and uses only what it needs. An
    allocator that keeps the allocation for the next cluster lets a larger cluster use the rest, so
    that the process slowly exceeds its budget. Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_BYTES)


def code_layout(codec: str, dimension: int) -> CodeLayout:
    """Returns how FAISS arranges the codes of `codec`."""
    lists = _Lists(np.zeros((1, dimension), np.float32), codec)
    return CodeLayout(
        codec=codec, block_rows=lists.lists.n_per_block, block_bytes=lists.lists.block_size
    )


class _Lists:
    """An index of FAISS over `centroids`, (nlist, dim) float32, rotated; its lists are empty."""

    def __init__(self, centroids: Float32, codec: str) -> None:
        nlist, dimension = centroids.shape
        self.quantizer = faiss.IndexFlatIP(dimension)
        self.quantizer.add(np.ascontiguousarray(centroids))
        index: Any = faiss.IndexIVFRaBitQFastScan(
            self.quantizer, dimension, nlist, faiss.METRIC_INNER_PRODUCT, 32, True, BITS_OF[codec]
        )
        index.is_trained = True  # there is nothing to train
        index.implem = NEAREST_FIRST
        self.index = index
        self.lists: Any = faiss.downcast_InvertedLists(index.invlists)


class Encoder:
    """Encodes the vectors of one cluster after the other."""

    def __init__(self, codec: str, centroids: Float32, rotation: Float32) -> None:
        """`centroids`: (nlist, dim) float32; `rotation`: (dim, dim) float32."""
        self._codec = codec
        self._rotation = rotation
        self._centroids = centroids @ rotation
        self.layout = code_layout(codec, centroids.shape[1])

    def encode(self, cluster: int, vectors: Float32) -> bytes:
        """Returns the codes of `vectors`, all of `cluster`: (n, dim) float32. About 40,000 a s."""
        if not len(vectors):
            return b""
        # One list with one centroid: FAISS then cannot put a vector into another cluster.
        one = _Lists(self._centroids[cluster : cluster + 1], self._codec)
        one.index.add(np.ascontiguousarray(vectors @ self._rotation))
        codes = np.empty(self.layout.size_bytes(len(vectors)), np.uint8)
        faiss.memcpy(faiss.swig_ptr(codes), one.lists.get_codes(0), len(codes))
        return codes.tobytes()


class CodeScanner:
    """Scans the codes that are in memory. `load` and `drop` change what that is.

    Threads may scan at the same time, and while one thread loads or drops other clusters. Memory:
    the codes, and 8 bytes a row that FAISS wants for its id.
    """

    def __init__(
        self,
        layout: CodeLayout,
        centroids: Float32,
        rotation: Float32,
        first_rows: Int64,
        row_counts: Int64,
    ) -> None:
        """`first_rows`, `row_counts`: (nlist,) int64, the rows of each cluster."""
        self._layout = layout
        self._rotation = rotation
        self._first_rows = first_rows
        self._row_counts = row_counts
        self._all = _Lists(centroids @ rotation, layout.codec)

    def load(self, cluster: int, codes: UInt8) -> None:
        """Takes over a copy of the codes of a cluster, (n,) uint8, verified."""
        assert len(codes) == self._layout.size_bytes(int(self._row_counts[cluster]))
        self.make_room(cluster)
        self.write(cluster, 0, codes)

    def make_room(self, cluster: int) -> None:
        """Takes memory for the codes of a cluster; then `write` all of them."""
        first, count = int(self._first_rows[cluster]), int(self._row_counts[cluster])
        if not count:
            return
        lists = self._all.lists
        lists.resize(cluster, count)
        rows = np.arange(first, first + count, dtype=np.int64)
        faiss.memcpy(lists.get_ids(cluster), faiss.swig_ptr(rows), rows.nbytes)

    def write(self, cluster: int, start: int, codes: UInt8) -> None:
        """Copies codes of a cluster, verified, to byte `start` of its memory."""
        if len(codes):
            assert start + len(codes) <= self._layout.size_bytes(int(self._row_counts[cluster]))
            place = int(self._all.lists.get_codes(cluster)) + start
            ctypes.memmove(place, codes.ctypes.data, len(codes))

    def drop(self, cluster: int) -> None:
        """Frees the codes of a cluster; no scan may use them. FAISS keeps the memory of its ids."""
        self._all.lists.resize(cluster, 0)

    def scan(self, queries: Float32, probes: Sequence[Int64], count: int) -> tuple[Int64, Float32]:
        """Returns the rows with the best estimated scores of each query, and the estimates.

        `queries`: (n, dim) float32; `probes`: the clusters of each query, nearest first. Returns
        (n, count) int64, -1 where the clusters have fewer rows, and (n, count) float32, best first.
        Releases the GIL. Uses as many threads as OpenMP is set to.
        """
        width = max(len(one) for one in probes)
        assigned = np.full((len(queries), width), -1, np.int64)
        for at, one in enumerate(probes):
            assigned[at, : len(one)] = one
        rotated = np.ascontiguousarray(queries @ self._rotation)
        # FAISS computes with residuals and does not read these scores of centroids.
        coarse = np.zeros(assigned.shape, np.float32)
        estimates = np.empty((len(queries), count), np.float32)
        rows = np.empty((len(queries), count), np.int64)
        parameters = faiss.IVFRaBitQSearchParameters()
        parameters.nprobe = width
        pointer = faiss.swig_ptr
        self._all.index.search_preassigned_c(
            len(queries),
            pointer(rotated),
            count,
            pointer(assigned),
            pointer(coarse),
            pointer(estimates),
            pointer(rows),
            False,
            parameters,
        )
        return rows, estimates

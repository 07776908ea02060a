"""Codes of vectors, encoded and scanned by FAISS: one interface for all codecs.

RaBitQ and `sq8` encode rotated vectors, by one random rotation: their errors hold for the numbers
of rotated vectors. Queries are rotated, too; the stored rows are not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from carpool.codes.codec import RABITQ_BITS, CodeLayout
from carpool.codes.rabitq import encode_rabitq, rabitq_index
from carpool.codes.row_codes import encode_rows, row_index
from carpool.errors import ConfigError

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]

_M_MMAP_THRESHOLD = -3
_OWN_MAPPING_BYTES = 32 << 10
"""Allocations from this size on have pages of their own."""


def return_freed_memory() -> None:
    """Makes the allocator return the memory of codes to the system as soon as they are dropped.

    FAISS allocates up to twice the bytes of a cluster's codes, and uses only what it needs. An
    allocator that keeps the allocation for the next cluster lets a larger cluster use the rest, so
    that the process slowly exceeds its budget. Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_BYTES)


def code_layout(codec: str, dimension: int, vector_dtype: str) -> CodeLayout:
    """Returns how the codes of `codec` are arranged. `vector_dtype`: of the stored rows."""
    one_cluster = np.zeros((1, dimension), np.float32)
    return _layout_of(codec, _empty_index(codec, one_cluster, np.dtype(vector_dtype).itemsize))


def _empty_index(codec: str, centroids: Float32, number_bytes: int) -> Any:
    """`centroids`: (nlist, dim) float32, rotated; `number_bytes`: of `flat`, 2 or 4."""
    if codec in RABITQ_BITS:
        return rabitq_index(codec, centroids)
    nlist, dimension = centroids.shape
    return row_index(codec, nlist, dimension, number_bytes)


def _layout_of(codec: str, index: Any) -> CodeLayout:
    lists: Any = faiss.downcast_InvertedLists(index.invlists)
    return CodeLayout(codec=codec, block_rows=lists.n_per_block, block_bytes=lists.block_size)


def _rotated(
    codec: str, vectors: npt.NDArray[np.floating], rotation: Float32
) -> npt.NDArray[np.floating]:
    """Returns `vectors` as `codec` takes them, contiguous; rotated ones are float32."""
    if codec != "flat":
        vectors = vectors.astype(np.float32, copy=False) @ rotation
    return np.ascontiguousarray(vectors)


class Encoder:
    """Encodes the vectors of one cluster after the other."""

    def __init__(self, layout: CodeLayout, centroids: Float32, rotation: Float32) -> None:
        """`centroids`: (nlist, dim) float32; `rotation`: (dim, dim) float32."""
        self.layout = layout
        self._rotation = rotation
        self._centroids = _rotated(layout.codec, centroids, rotation)

    def encode(self, cluster: int, vectors: npt.NDArray[np.floating]) -> bytes:
        """Returns the codes of `vectors`, all of `cluster`: (n, dim) float32 or float16."""
        if not len(vectors):
            return b""
        codec = self.layout.codec
        rotated = _rotated(codec, vectors, self._rotation)
        if codec in RABITQ_BITS:
            return encode_rabitq(codec, self._centroids[cluster], rotated)
        return encode_rows(codec, rotated, self.layout.block_bytes // vectors.shape[1])


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
        """`first_rows`, `row_counts`: (nlist,) int64, the rows of each cluster.

        Raises `ConfigError` where this FAISS arranges such codes in another way.
        """
        self._layout = layout
        self._rotation = rotation
        self._first_rows = first_rows
        self._row_counts = row_counts
        self._index = _empty_index(
            layout.codec,
            _rotated(layout.codec, centroids, rotation),
            layout.block_bytes // centroids.shape[1],
        )
        self._lists: Any = faiss.downcast_InvertedLists(self._index.invlists)
        if (ours := _layout_of(layout.codec, self._index)) != layout:
            raise ConfigError(
                f"the codes of the index are arranged as {layout}, and this version of FAISS "
                f"arranges them as {ours}; build the index again"
            )

    def load(self, cluster: int, codes: UInt8) -> None:
        """Takes over a copy of the codes of a cluster, (n,) uint8, verified."""
        first, count = int(self._first_rows[cluster]), int(self._row_counts[cluster])
        assert len(codes) == self._layout.size_bytes(count)
        if not count:
            return
        self._lists.resize(cluster, count)
        rows = np.arange(first, first + count, dtype=np.int64)
        faiss.memcpy(self._lists.get_ids(cluster), faiss.swig_ptr(rows), rows.nbytes)
        ctypes.memmove(int(self._lists.get_codes(cluster)), codes.ctypes.data, len(codes))

    def drop(self, cluster: int) -> None:
        """Frees the codes of a cluster; no scan may use them. FAISS keeps the memory of its ids."""
        self._lists.resize(cluster, 0)

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
        codec = self._layout.codec
        rotated = _rotated(codec, queries, self._rotation)
        # FAISS reads these scores of centroids for none of the codecs.
        coarse = np.zeros(assigned.shape, np.float32)
        estimates = np.empty((len(queries), count), np.float32)
        rows = np.empty((len(queries), count), np.int64)
        parameters: Any = (
            faiss.IVFRaBitQSearchParameters()
            if codec in RABITQ_BITS
            else faiss.SearchParametersIVF()
        )
        parameters.nprobe = width
        pointer = faiss.swig_ptr
        self._index.search_preassigned_c(
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

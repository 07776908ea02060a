"""Codes of 4 bits a number: a scan reads the codes of each cluster once, for all who ask.

A row is about its cluster's centroid plus its code; each number of a code is a multiple of the
row's step (`int4.cpp` says how codes are arranged). Rows, centroids and queries are rotated by one
random rotation, so that no number is much larger than the others. A query is rounded to 8 bits a
number, and products of whole numbers are exact: every kernel returns the same rows.

A scan may have a mask: rows that it hides are not found, and blocks of hidden rows are not read.

Without a [kernel](kernel.py) NumPy does the same, fifty times slower.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from carpool.arrays import Float32, Int64, UInt8
from carpool.codes.by_numpy import (
    BLOCK_ROWS,
    GROUP,
    Proposed,
    Unpacked,
    pack,
    round_rows,
    scan_by_numpy,
    unpack,
)
from carpool.codes.codec import CODEC, CodeLayout
from carpool.codes.kernel import kernels, library
from carpool.codes.row_mask import RowMask, check_mask
from carpool.errors import ConfigError


def code_layout(dimension: int) -> CodeLayout:
    """Returns how the codes of vectors of `dimension` numbers are arranged."""
    row_bytes = -(-dimension // GROUP) * GROUP // 2 + 4
    return CodeLayout(codec=CODEC, block_rows=BLOCK_ROWS, block_bytes=BLOCK_ROWS * row_bytes)


def _check(layout: CodeLayout, dimension: int) -> None:
    if layout != (ours := code_layout(dimension)):
        raise ConfigError(
            f"the codes of the index are arranged as {layout}, and this version arranges them as "
            f"{ours}; make new codes: carpool index codes DIR"
        )


def _place(array: npt.NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


class Encoder:
    """Encodes the rows of one cluster after the other."""

    def __init__(self, layout: CodeLayout, centroids: Float32, rotation: Float32) -> None:
        """`centroids`: (nlist, dim) float32; `rotation`: (dim, dim) float32."""
        _check(layout, len(rotation))
        self.layout = layout
        self._rotation = rotation
        self._centroids = centroids @ rotation

    @np.errstate(over="ignore", invalid="ignore")
    def encode(self, cluster: int, vectors: npt.NDArray[np.floating]) -> bytes:
        """Returns the codes of `vectors`, (n, dim) float32 or float16, all of `cluster`.

        Raises `ConfigError` naming the first row that is not finite, or far too long.
        """
        rest = vectors.astype(np.float32, copy=False) @ self._rotation - self._centroids[cluster]
        if not (fits := np.isfinite(np.einsum("nd,nd->n", rest, rest))).all():
            raise ConfigError(  # C++ does not define what the kernel would do
                f"row {fits.argmin()} of cluster {cluster} is not finite, or far too long: "
                "build the index again, with vectors of length 1"
            )
        return encode_rest(rest).tobytes()


def encode_rest(rest: Float32) -> UInt8:
    """Returns blocks of codes, (blocks, bytes), of rotated rows minus their centroids, (n, dim)."""
    if (kernel := library()) is None:
        return pack(*round_rows(rest))
    rest = np.ascontiguousarray(rest)
    layout = code_layout(rest.shape[1])
    codes = np.empty(
        (layout.size_bytes(len(rest)) // layout.block_bytes, layout.block_bytes), np.uint8
    )
    kernel.int4_encode(_place(rest), ctypes.c_int64(len(rest)), rest.shape[1], _place(codes))
    return codes


def propose(queries: Float32, rotation: Float32, count: int) -> list[Proposed]:
    """Returns what scans are to propose; see `CodeScanner.begin`."""
    if queries.shape[1:] != rotation.shape[1:]:
        raise ValueError(f"queries of shape {queries.shape} do not fit the index")
    rows = np.full((len(queries), count), -1, np.int64)
    estimates = np.full((len(queries), count), -np.inf, np.float32)
    return list(map(Proposed, np.ascontiguousarray(queries @ rotation), rows, estimates))


def flat_probes(probes: Sequence[Int64], queries: int, clusters: int) -> tuple[Int64, Int64]:
    """Returns where the clusters of each query begin among those of all, and these.

    Raises `ValueError` where there are not as many as `queries`, or one is not below `clusters`.
    """
    starts = np.cumsum([0, *map(len, probes)], dtype=np.int64)
    flat = np.concatenate([np.empty(0, np.int64), *probes], dtype=np.int64)
    if len(probes) != queries or not ((flat >= 0) & (flat < clusters)).all():
        raise ValueError(f"{len(probes)} probes do not fit an index of {clusters} clusters")
    return starts, flat


def scan_by_kernel(
    kernel: ctypes.CDLL,
    number: int,
    threads: int,
    index: Sequence[npt.NDArray[np.generic] | None],
    mask: RowMask | None,
    proposed: Sequence[Proposed],
    starts: Int64,
    clusters: Int64,
) -> None:
    """Calls the scan of the kernel, whose numbers and arrays are checked. Releases the GIL.

    `index`: places of codes and lists of blocks, first rows (None: see `int4.cpp`), row counts, and
    centroids, of each cluster. `starts`, `clusters`: as `int4.cpp` says.
    """
    asked = np.array([one.places for one in proposed], np.int64)
    kernel.int4_scan(
        number,
        threads,
        *(None if each is None else _place(each) for each in index),
        _place(mask) if mask is not None else None,
        len(proposed[0].query),
        _place(asked),
        ctypes.c_int64(len(asked)),
        _place(starts),
        _place(clusters),
    )


class CodeScanner:
    """Scans the codes that are in memory. `load` and `drop` change what that is.

    Threads may scan at the same time, and while one thread loads or drops other clusters.
    """

    def __init__(
        self,
        layout: CodeLayout,
        centroids: Float32,
        rotation: Float32,
        first_rows: Int64,
        row_counts: Int64,
        *,
        threads: int = 1,
        kernel: str | None = None,
        copies_bytes: int = 0,
    ) -> None:
        """`first_rows`, `row_counts`: (nlist,) int64, the rows of each cluster.

        `load` copies into memory of `copies_bytes`; 0: it keeps what it is given. `threads` is how
        many share the clusters of a scan. `kernel` is one of `kernels()`; None: the fastest. Raises
        `ConfigError` where the codes of the index are arranged in another way.
        """
        _check(layout, len(rotation))
        self._layout = layout
        self._rotation = rotation
        self._centroids = np.ascontiguousarray(centroids @ rotation)
        self._first_rows = np.ascontiguousarray(first_rows, np.int64)
        self._row_counts = np.ascontiguousarray(row_counts, np.int64)
        self._end_row = int((self._first_rows + self._row_counts).max(initial=0))
        self._codes: dict[int, UInt8] = {}
        self._places = np.zeros(len(row_counts), np.uint64)
        # Copies take free blocks, wherever these are: so no memory is lost between clusters, and
        # the system does not have to clear pages for each.
        self._copies = np.empty((copies_bytes // layout.block_bytes, layout.block_bytes), np.uint8)
        self._free = np.arange(len(self._copies))
        self._free_count = len(self._free)
        self._blocks: dict[int, Int64] = {}
        self._block_places = np.zeros(len(row_counts), np.uint64)
        self._index = (
            self._places,
            self._block_places,
            self._first_rows,
            self._row_counts,
            self._centroids,
        )
        self._threads = threads
        self._kernel = kernels().index(kernel) if kernel is not None else 0

    def load(self, cluster: int, codes: UInt8) -> None:
        """Takes the codes of a cluster that is not in memory, (n,) uint8, verified."""
        assert len(codes) == self._layout.size_bytes(int(self._row_counts[cluster]))
        if not len(codes):
            return
        if len(self._copies):
            taken = codes.reshape(-1, self._layout.block_bytes)
            self._free_count -= len(taken)
            blocks = self._free[self._free_count :][: len(taken)].copy()
            self._copies[blocks] = taken
            self._blocks[cluster], codes = blocks, self._copies
            self._block_places[cluster] = blocks.ctypes.data
        self._codes[cluster] = codes
        self._places[cluster] = codes.ctypes.data

    def drop(self, cluster: int) -> None:
        """Lets go of the codes of a cluster; no scan may use them."""
        self._places[cluster] = 0
        self._codes.pop(cluster, None)
        blocks = self._blocks.pop(cluster, self._free[:0])
        self._free[self._free_count :][: len(blocks)] = blocks
        self._free_count += len(blocks)

    def begin(self, queries: Float32, count: int) -> list[Proposed]:
        """Returns what scans are to propose: `count` rows for each of `queries`, (n, dim) float32.

        Raises `ValueError` for queries that do not fit the index.
        """
        return propose(queries, self._rotation, count)

    def add(
        self, proposed: Sequence[Proposed], probes: Sequence[Int64], mask: RowMask | None = None
    ) -> None:
        """Adds the rows of clusters to what is proposed, where they are better. Releases the GIL.

        `probes`: the clusters of each query, nearest first. `mask`: the rows that may be found;
        None: all. Of equal estimates the lower row is the better. Raises `ValueError` for clusters
        that the index does not have, and for a mask that lacks rows: the kernel would read memory
        that is not its own.
        """
        if mask is not None:
            check_mask(mask, self._end_row)
        starts, clusters = flat_probes(probes, len(proposed), len(self._row_counts))
        kernel = library()
        if kernel is None or kernels()[self._kernel] == "numpy":
            scan_by_numpy(self._unpacked, self._centroids, proposed, probes, mask)
            return
        scan_by_kernel(
            kernel, self._kernel, self._threads, self._index, mask, proposed, starts, clusters
        )

    def scan(
        self, queries: Float32, probes: Sequence[Int64], count: int, mask: RowMask | None = None
    ) -> tuple[Int64, Float32]:
        """Returns the rows with the best estimated scores of each query, and the estimates.

        `queries`: (n, dim) float32; `probes`: the clusters of each. Returns (n, count) int64, -1
        where the clusters have fewer rows, and (n, count) float32, best first. See `begin`, `add`.
        """
        proposed = self.begin(queries, count)
        self.add(proposed, probes, mask)
        rows = np.stack([one.rows for one in proposed])
        estimates = np.stack([one.estimates for one in proposed])
        order = np.lexsort((rows, -estimates))
        return np.take_along_axis(rows, order, 1), np.take_along_axis(estimates, order, 1)

    def _unpacked(self, cluster: int) -> Unpacked | None:
        """Returns the codes of a cluster; None where they are not in memory."""
        if cluster not in self._codes:
            return None
        row_count = int(self._row_counts[cluster])
        blocks = self._codes[cluster].reshape(-1, self._layout.block_bytes)
        blocks = blocks[self._blocks.get(cluster, slice(None))]
        codes, steps = unpack(blocks, row_count, self._centroids.shape[1])
        return codes, steps, np.arange(row_count) + self._first_rows[cluster]

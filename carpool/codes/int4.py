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
from carpool.codes.codec import CODEC, CodeLayout
from carpool.codes.kernel import kernels, library
from carpool.codes.row_mask import RowMask, check_mask, visible
from carpool.errors import ConfigError

BLOCK_ROWS = 16
GROUP, GROUP_BYTES = 8, 64
"""Numbers of a row that a block has together, and their bytes, of all its rows."""
STEPS = np.linspace(0.35, 1.0, 14, dtype=np.float32)
"""Steps that are tried for a row, as shares of the least step that reaches its largest number."""


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
        if (kernel := library()) is None:
            return _pack(*_round(rest)).tobytes()
        rest = np.ascontiguousarray(rest)
        codes = np.empty(self.layout.size_bytes(len(rest)), np.uint8)
        kernel.int4_encode(_place(rest), ctypes.c_int64(len(rest)), rest.shape[1], _place(codes))
        return codes.tobytes()


def _round(rest: Float32) -> tuple[UInt8, Float32]:
    """Returns codes, (n, dim), and the step of each row, as the kernel does."""
    most = np.maximum(np.abs(rest).max(axis=1, initial=0.0), np.float32(1e-30))
    squares = np.einsum("nd,nd->n", rest, rest)
    codes = np.zeros(rest.shape, np.uint8)
    steps, best = np.zeros((2, len(rest)), np.float32)
    for share in STEPS:
        inverse = np.float32(7.5) / most / share
        tried = np.clip(rest * inverse[:, None] + np.float32(8), 0, np.float32(15.99))
        numbers = tried.astype(np.uint8)
        centred = numbers - np.float32(7.5)
        products = np.einsum("nd,nd->n", centred, rest)
        cosines = products / np.sqrt(np.einsum("nd,nd->n", centred, centred))
        better = cosines > best
        codes[better], best[better] = numbers[better], cosines[better]
        steps[better] = squares[better] / products[better]
    return codes, steps


def _pack(codes: UInt8, steps: Float32) -> UInt8:
    """Returns blocks, (blocks, bytes): `codes`, (n, dim) of 0 to 15; `steps`, (n,)."""
    blocks, groups = -(-len(codes) // BLOCK_ROWS), -(-codes.shape[1] // GROUP)
    whole = np.zeros((blocks * BLOCK_ROWS, groups * GROUP), np.uint8)
    whole[: len(codes), : codes.shape[1]] = codes
    halves = whole.reshape(blocks, BLOCK_ROWS, groups, 2, GROUP // 2).transpose(0, 2, 3, 1, 4)
    numbers = (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(blocks, groups * GROUP_BYTES)
    all_steps = np.zeros(blocks * BLOCK_ROWS, np.float32)
    all_steps[: len(codes)] = steps
    return np.hstack([numbers, all_steps.reshape(blocks, BLOCK_ROWS).view(np.uint8)])


def _unpack(blocks: UInt8, row_count: int, dimension: int) -> tuple[npt.NDArray[np.int8], Float32]:
    """Returns codes, (n, dim), and the step of each row."""
    numbers, steps = blocks[:, : -4 * BLOCK_ROWS], blocks[:, -4 * BLOCK_ROWS :]
    halves = numbers.reshape(len(blocks), -1, BLOCK_ROWS, GROUP // 2)
    both = np.stack([halves & 15, halves >> 4], axis=3)
    codes = both.transpose(0, 2, 1, 3, 4).reshape(len(blocks) * BLOCK_ROWS, -1)
    every_step = np.ascontiguousarray(steps).view(np.float32).reshape(-1)
    return codes[:row_count, :dimension].astype(np.int8), every_step[:row_count]


class Proposed:
    """The rows of one query with the best estimates, of all scans so far.

    `rows`, `estimates`: (count,) int64 and float32, in no order; -1 and -inf where there are fewer.
    """

    __slots__ = ("estimates", "places", "query", "rows")

    def __init__(self, query: Float32, rows: Int64, estimates: Float32) -> None:
        """`query`: (dim,) float32, rotated."""
        self.query, self.rows, self.estimates = query, rows, estimates
        arrays = (query, rows, estimates)
        self.places = (*(array.ctypes.data for array in arrays), len(rows))


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
        if queries.shape[1:] != self._rotation.shape[1:]:
            raise ValueError(f"queries of shape {queries.shape} do not fit the index")
        rows = np.full((len(queries), count), -1, np.int64)
        estimates = np.full((len(queries), count), -np.inf, np.float32)
        rotated = np.ascontiguousarray(queries @ self._rotation)
        return list(map(Proposed, rotated, rows, estimates))

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
        starts = np.cumsum([0, *map(len, probes)], dtype=np.int64)
        clusters = np.concatenate([np.empty(0, np.int64), *probes], dtype=np.int64)
        nlist = len(self._row_counts)
        if len(probes) != len(proposed) or not ((clusters >= 0) & (clusters < nlist)).all():
            raise ValueError(f"{len(probes)} probes do not fit an index of {nlist} clusters")
        kernel = library()
        if kernel is None or kernels()[self._kernel] == "numpy":
            self._add_by_numpy(proposed, probes, mask)
            return
        asked = np.array([one.places for one in proposed], np.int64)
        kernel.int4_scan(
            self._kernel,
            self._threads,
            *map(_place, self._index),
            _place(mask) if mask is not None else None,
            self._centroids.shape[1],
            _place(asked),
            ctypes.c_int64(len(asked)),
            _place(starts),
            _place(clusters),
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

    def _add_by_numpy(
        self, proposed: Sequence[Proposed], probes: Sequence[Int64], mask: RowMask | None
    ) -> None:
        queries = np.stack([one.query for one in proposed])
        scales = np.maximum(np.abs(queries).max(axis=1), np.float32(1e-30)) / np.float32(127)
        numbers = np.rint(queries / scales[:, None])
        found = [[(one.rows, one.estimates)] for one in proposed]
        wanted_by: dict[int, list[int]] = {}
        for query, clusters in enumerate(probes):
            for cluster in clusters.tolist():
                wanted_by.setdefault(cluster, []).append(query)
        for cluster, some in wanted_by.items():
            if cluster not in self._codes:
                continue
            row_count, dimension = int(self._row_counts[cluster]), queries.shape[1]
            blocks = self._codes[cluster].reshape(-1, self._layout.block_bytes)
            blocks = blocks[self._blocks.get(cluster, slice(None))]
            codes, steps = _unpack(blocks, row_count, dimension)
            products = (codes - np.float32(7.5)) @ numbers[some].T
            base = queries[some] @ self._centroids[cluster]
            scores = base + scales[some] * steps[:, None] * products
            rows = np.arange(row_count) + self._first_rows[cluster]
            if mask is not None:
                shown = visible(mask, int(self._first_rows[cluster]), row_count)
                rows, scores = rows[shown], scores[shown]
            for at, query in enumerate(some):
                found[query].append((rows, scores[:, at].astype(np.float32)))
        for one, parts in zip(proposed, found, strict=True):
            rows, scores = map(np.concatenate, zip(*parts, strict=True))
            best = np.lexsort((rows, -scores))[: len(one.rows)]
            one.rows[:], one.estimates[:] = rows[best], scores[best]

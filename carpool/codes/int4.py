"""Codes of 4 bits a number: a scan reads the codes of each cluster once, for all who ask.

A row is about its cluster's centroid plus its code; each number of a code is a multiple of the
row's step (`int4.cpp` says how codes are arranged). Rows, centroids and queries are rotated by one
random rotation, so that no number is much larger than the others. A query is rounded to 8 bits a
number, and products of whole numbers are exact: every kernel returns the same rows.

The kernel is compiled when the package is installed (`hatch_build.py`). Without a compiler NumPy
does the same, fifty times slower.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from carpool.codes.codec import CODEC, CodeLayout
from carpool.errors import ConfigError

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]

LIBRARY = Path(__file__).with_name("libint4.so")
BLOCK_ROWS = 16
GROUP, GROUP_BYTES = 8, 64
"""Numbers of a row that a block has together, and their bytes, of all its rows."""
STEPS = np.linspace(0.35, 1.0, 14, dtype=np.float32)
"""Steps that are tried for a row, as shares of the least step that reaches its largest number."""


@cache
def _library() -> ctypes.CDLL | None:
    try:
        found = ctypes.CDLL(str(LIBRARY))
    except OSError:
        return None
    found.int4_kernel.restype = ctypes.c_char_p
    return found


@cache
def kernels() -> tuple[str, ...]:
    """Returns the names of what can scan here, the fastest first: the last is always `numpy`."""
    found, library = list[str](), _library()
    while library is not None and (name := library.int4_kernel(len(found))) is not None:
        found.append(name.decode())
    return (*found, "numpy")


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
    """Encodes the rows of one cluster after the other. Implements `ClusterEncoder`."""

    def __init__(self, layout: CodeLayout, centroids: Float32, rotation: Float32) -> None:
        """`centroids`: (nlist, dim) float32; `rotation`: (dim, dim) float32."""
        _check(layout, len(rotation))
        self.layout = layout
        self._rotation = rotation
        self._centroids = centroids @ rotation

    def encode(self, cluster: int, vectors: npt.NDArray[np.floating]) -> bytes:
        """Returns the codes of `vectors`, (n, dim) float32 or float16, all of `cluster`."""
        rest = vectors.astype(np.float32, copy=False) @ self._rotation - self._centroids[cluster]
        if (library := _library()) is None:
            return _pack(*_round(rest)).tobytes()
        rest = np.ascontiguousarray(rest)
        codes = np.empty(self.layout.size_bytes(len(rest)), np.uint8)
        library.int4_encode(_place(rest), ctypes.c_int64(len(rest)), rest.shape[1], _place(codes))
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
    """Returns blocks, (blocks, bytes)."""
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

        `copies_bytes`: of memory into which `load` copies; 0: it keeps the memory that it is given.
        `threads`: that share the clusters of a scan. `kernel`: of `kernels()`; None: the fastest.
        Raises `ConfigError` where the codes of the index are arranged in another way.
        """
        _check(layout, len(rotation))
        self._layout = layout
        self._rotation = rotation
        self._centroids = np.ascontiguousarray(centroids @ rotation)
        self._first_rows = np.ascontiguousarray(first_rows, np.int64)
        self._row_counts = np.ascontiguousarray(row_counts, np.int64)
        self._codes: dict[int, UInt8] = {}
        self._places = np.zeros(len(row_counts), np.uint64)
        # Copies take free blocks, wherever these are: so no memory is lost between clusters, and
        # the system does not have to clear pages for each.
        self._copies = np.empty((copies_bytes // layout.block_bytes, layout.block_bytes), np.uint8)
        self._free = np.arange(len(self._copies))
        self._free_count = len(self._free)
        self._blocks: dict[int, Int64] = {}
        self._block_places = np.zeros(len(row_counts), np.uint64)
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

    def scan(self, queries: Float32, probes: Sequence[Int64], count: int) -> tuple[Int64, Float32]:
        """Returns the rows with the best estimated scores of each query, and the estimates.

        `queries`: (n, dim) float32; `probes`: the clusters of each query, nearest first. Returns
        (n, count) int64, -1 where the clusters have fewer rows, and (n, count) float32, best first;
        of equal estimates the lower row is the better. Releases the GIL. Raises `ValueError` for
        arrays that do not fit the index: the kernel would read memory that is not its own.
        """
        if queries.shape[1:] != self._centroids.shape[1:] or len(probes) != len(queries):
            raise ValueError(f"{len(probes)} probes do not fit queries of shape {queries.shape}")
        rotated = np.ascontiguousarray(queries @ self._rotation)
        library = _library()
        if library is None or kernels()[self._kernel] == "numpy":
            return self._scan_by_numpy(rotated, probes, count)
        starts = np.zeros(len(queries) + 1, np.int64)
        np.cumsum([len(one) for one in probes], out=starts[1:])
        every_probe = np.concatenate(probes).astype(np.int64, copy=False)
        if len(every_probe) and not 0 <= every_probe.min() <= every_probe.max() < len(self._places):
            raise ValueError(f"an index of {len(self._places)} clusters has not all of the probes")
        rows = np.empty((len(queries), count), np.int64)
        estimates = np.empty((len(queries), count), np.float32)
        library.int4_scan(
            self._kernel,
            self._threads,
            _place(self._places),
            _place(self._block_places),
            _place(self._first_rows),
            _place(self._row_counts),
            _place(self._centroids),
            rotated.shape[1],
            _place(rotated),
            ctypes.c_int64(len(queries)),
            _place(starts),
            _place(every_probe),
            count,
            _place(rows),
            _place(estimates),
        )
        return rows, estimates

    def _scan_by_numpy(
        self, queries: Float32, probes: Sequence[Int64], count: int
    ) -> tuple[Int64, Float32]:
        scales = np.maximum(np.abs(queries).max(axis=1), np.float32(1e-30)) / np.float32(127)
        numbers = np.rint(queries / scales[:, None])
        found: list[list[tuple[Int64, Float32]]] = [[] for _ in queries]
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
            for at, query in enumerate(some):
                found[query].append((rows, scores[:, at].astype(np.float32)))
        all_rows = np.full((len(queries), count), -1, np.int64)
        estimates = np.full((len(queries), count), -np.inf, np.float32)
        for query, parts in enumerate(found):
            if parts:
                rows, scores = map(np.concatenate, zip(*parts, strict=True))
                best = np.lexsort((rows, -scores))[:count]
                all_rows[query, : len(best)] = rows[best]
                estimates[query, : len(best)] = scores[best]
        return all_rows, estimates

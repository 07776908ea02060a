"""What the kernel does, by NumPy: rounds rows to codes, packs them into blocks, scans them.

It is fifty times slower, and finds the same rows. `int4.cpp` says how codes are arranged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from carpool.arrays import Float32, Int64, UInt8
from carpool.codes.row_mask import RowMask, are_visible

BLOCK_ROWS = 16
GROUP, GROUP_BYTES = 8, 64
"""Numbers of a row that a block has together, and their bytes, of all its rows."""
STEPS = np.linspace(0.35, 1.0, 14, dtype=np.float32)
"""Steps that are tried for a row, as shares of the least step that reaches its largest number."""
Unpacked = tuple[npt.NDArray[np.int8], Float32, Int64]
"""Codes, (n, dim), the step of each row, and its number."""


def round_rows(rest: Float32) -> tuple[UInt8, Float32]:
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


def pack(codes: UInt8, steps: Float32) -> UInt8:
    """Returns blocks, (blocks, bytes): `codes`, (n, dim) of 0 to 15; `steps`, (n,)."""
    blocks, groups = -(-len(codes) // BLOCK_ROWS), -(-codes.shape[1] // GROUP)
    whole = np.zeros((blocks * BLOCK_ROWS, groups * GROUP), np.uint8)
    whole[: len(codes), : codes.shape[1]] = codes
    halves = whole.reshape(blocks, BLOCK_ROWS, groups, 2, GROUP // 2).transpose(0, 2, 3, 1, 4)
    numbers = (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(blocks, groups * GROUP_BYTES)
    all_steps = np.zeros(blocks * BLOCK_ROWS, np.float32)
    all_steps[: len(codes)] = steps
    return np.hstack([numbers, all_steps.reshape(blocks, BLOCK_ROWS).view(np.uint8)])


def unpack(blocks: UInt8, row_count: int, dimension: int) -> tuple[npt.NDArray[np.int8], Float32]:
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


def scan_by_numpy(
    unpacked: Callable[[int], Unpacked | None],
    centroids: Float32,
    proposed: Sequence[Proposed],
    probes: Sequence[Int64],
    mask: RowMask | None,
) -> None:
    """Adds the rows of clusters to what is proposed; see `CodeScanner.add`.

    `unpacked` returns the codes of a cluster; None where they are not in memory. `centroids`:
    (clusters, dim) float32, rotated.
    """
    queries = np.stack([one.query for one in proposed])
    scales = np.maximum(np.abs(queries).max(axis=1), np.float32(1e-30)) / np.float32(127)
    numbers = np.rint(queries / scales[:, None])
    found = [[(one.rows, one.estimates)] for one in proposed]
    wanted_by: dict[int, list[int]] = {}
    for query, clusters in enumerate(probes):
        for cluster in clusters.tolist():
            wanted_by.setdefault(cluster, []).append(query)
    for cluster, some in wanted_by.items():
        if (known := unpacked(cluster)) is None:
            continue
        codes, steps, rows = known
        products = (codes - np.float32(7.5)) @ numbers[some].T
        base = queries[some] @ centroids[cluster]
        scores = base + scales[some] * steps[:, None] * products
        if mask is not None:
            shown = are_visible(mask, rows)
            rows, scores = rows[shown], scores[shown]
        for at, query in enumerate(some):
            found[query].append((rows, scores[:, at].astype(np.float32)))
    for one, parts in zip(proposed, found, strict=True):
        rows, scores = map(np.concatenate, zip(*parts, strict=True))
        best = np.lexsort((rows, -scores))[: len(one.rows)]
        one.rows[:], one.estimates[:] = rows[best], scores[best]

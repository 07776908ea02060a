"""Products of rows, as their pages lie in memory, with queries: two ways to compute them, and which is faster here.

Few queries are dot products: each row is multiplied by all of them while it is in the nearest cache, and comes from memory as
fast as memory gives it. More are one batched matrix product over the pages, in batches small enough for OpenBLAS's kernels for
small matrices, which do not pack their operands. Which is better for so many queries depends on kernels, caches and memory;
rows of 384 in memory, and not in a cache, GB/s of one thread, on three machines:

    queries                        1    2    3    5    8   10   20
    dot products, AVX2            32   25   24   16   11    9    4
    matrix products, AVX2         30   10    9    9   10    8    6
    dot products, AVX-512         22    9    9    8    7    6    4
    matrix products, AVX-512      28   27   24   21   20   16   13
    dot products, AVX-512         20   15   11    7    4
    matrix products, AVX-512       9   13   10    9    8    9    8

So it is measured, once in a process. float16 rows are widened into a scratch first, 1.5 ms for 10,240 of 384.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from carpool.disk.pages import PageLayout, UInt8

Float32 = npt.NDArray[np.float32]

WIDE_BYTES = 1 << 19
"""float16 rows that are widened at a time."""
BATCH_PRODUCTS_MAX = 1_000_000
"""Multiplications of a batch. OpenBLAS takes a matrix product for a small one up to 100**3."""
BATCH_PAGES_MIN = 8
"""Below this a small product is slower than a large one."""
BATCH_PAGES_LARGE = 512
"""Where not even that is small: as many as make packing cheap."""
QUERIES_FEW_MAX = 7
"""More queries are never better off as dot products."""
TRIAL_BYTES = 32 << 20
"""Rows that both ways are tried on: more than caches hold for one core."""
TRIALS = 3
MARGIN = 32
"""Numbers that the dot products of one query run on for, into the hole at the end of a page."""
CHECKSUM_BYTES = 8

Multiply = Callable[[PageLayout, UInt8, Float32, Float32], None]


def multiply(layout: PageLayout, parts: list[UInt8], queries: Float32, scores: Float32) -> None:
    """Writes the scores of the rows of `parts`, in order, into the first rows of `scores`: (rows, q).

    Raises `ValueError` for queries of another dimension.
    """
    if queries.shape[1] != layout.dimension:
        raise ValueError(f"dimension mismatch: queries of {queries.shape[1]} numbers, vectors of {layout.dimension}")
    start = 0
    for pages in _widened(layout, parts) if layout.vector_dtype == "float16" else parts:
        end = start + len(pages) * layout.rows_per_page
        if len(queries) > queries_few(layout):
            _multiply_many(layout, pages, queries, scores[start:end])
        else:
            _multiply_few(layout, pages, queries, scores[start:end])
        start = end


@cache
def queries_few(layout: PageLayout) -> int:
    """Returns up to how many queries dot products are faster here, 0 to `QUERIES_FEW_MAX`, for rows of `layout`.

    Measured by the first call of a process, some 0.1 s on one core: make it before the first query comes.
    """
    is_wide = layout.vector_dtype == "float16"  # its rows are multiplied in the cache where they were widened
    page_bytes = 4 * layout.dimension * layout.rows_per_page if is_wide else layout.page_bytes
    pages = np.zeros((max(1, (WIDE_BYTES if is_wide else TRIAL_BYTES) // page_bytes), page_bytes), np.uint8)
    pages.fill(0)  # or all of it is one page of zeros, in the cache
    with threadpool_limits(limits=1, user_api="blas"):
        for count in range(1, QUERIES_FEW_MAX + 1):
            if not _are_dot_products_faster(layout, pages, count):
                return count - 1
    return QUERIES_FEW_MAX


def _are_dot_products_faster(layout: PageLayout, pages: UInt8, count: int) -> bool:
    queries = np.ones((layout.dimension, count), np.float32).T
    scores = np.empty((len(pages) * layout.rows_per_page, count), np.float32)
    times_s: dict[Multiply, float] = {}
    for _ in range(TRIALS):
        for way in (_multiply_few, _multiply_many):
            began_s = time.perf_counter()
            way(layout, pages, queries, scores)
            times_s[way] = min(times_s.get(way, math.inf), time.perf_counter() - began_s)
    return times_s[_multiply_few] < times_s[_multiply_many]


def _multiply_many(layout: PageLayout, pages: UInt8, queries: Float32, scores: Float32) -> None:
    """The rows of `pages` times (q, dim) into (pages * rows_per_page, q): matrix products of as many rows as suit the kernels."""
    dimension, rows_per_page = layout.dimension, layout.rows_per_page
    vectors = pages[:, : rows_per_page * dimension * 4].view("<f4").reshape(-1, rows_per_page, dimension)
    weights = np.ascontiguousarray(queries.T)
    batch_pages = len(vectors) if len(queries) == 1 else _batch_pages(len(queries), dimension)
    whole = len(vectors) // max(1, batch_pages) * batch_pages
    middle = whole * rows_per_page
    _multiply_batches(vectors[:whole], batch_pages, weights, scores[:middle])
    _multiply_batches(vectors[whole:], len(vectors) - whole, weights, scores[middle:])


def _batch_pages(count: int, dimension: int) -> int:
    pages = BATCH_PRODUCTS_MAX // (count * dimension) // BATCH_PAGES_MIN * BATCH_PAGES_MIN
    return min(pages or BATCH_PAGES_LARGE, BATCH_PAGES_LARGE)


def _multiply_batches(vectors: Float32, batch_pages: int, weights: Float32, scores: Float32) -> None:
    """(pages, rows_per_page, dim) times (dim, q) into (pages * rows_per_page, q), `batch_pages` rows at a time.

    A batch is the rows at one place of neighbouring pages: a matrix with a page for its stride, which BLAS takes as it is.
    """
    count, rows_per_page, dimension = vectors.shape
    if not count:
        return
    batched = (count // batch_pages, batch_pages, rows_per_page)
    np.matmul(
        vectors.reshape(*batched, dimension).transpose(0, 2, 1, 3),
        weights,
        out=scores.reshape(*batched, weights.shape[1]).transpose(0, 2, 1, 3),
    )


def _multiply_few(layout: PageLayout, pages: UInt8, queries: Float32, scores: Float32) -> None:
    """The rows of `pages` times (q, dim) into (pages * rows_per_page, q): dot products, in order of memory.

    Where a page's rows end, a hole begins: row numbers, zeros, checksum. Prefetchers that meet a hole of 512 bytes stop, and
    cost 2.5 times as much; so every dot product runs on for `MARGIN` numbers, which its query multiplies by zero.
    """
    rows_per_page, row_bytes = layout.rows_per_page, layout.dimension * 4
    hole_bytes = pages.shape[1] - CHECKSUM_BYTES - rows_per_page * row_bytes
    margin = min(MARGIN, max(0, hole_bytes // 4))
    shape = (len(pages), rows_per_page, 1, layout.dimension + margin)
    runs: Float32 = np.ndarray(shape, "<f4", pages, 0, (pages.shape[1], row_bytes, 0, 4))  # checks its bounds
    weights = np.zeros((len(queries), layout.dimension + margin), np.float32)
    weights[:, : layout.dimension] = queries
    out = scores.reshape(len(pages), rows_per_page, len(queries))
    with np.errstate(invalid="ignore"):
        np.vecdot(runs, weights, out=out)
    if math.isnan(out.min()):  # row numbers above 2**31 may read as infinite, and zero times that is none
        np.vecdot(runs[..., : layout.dimension], queries, out=out)


def _widened(layout: PageLayout, parts: list[UInt8]) -> Iterator[UInt8]:
    """Yields the pages of `parts` as rows of float32 alone, some at a time: (n, rows_per_page * dim * 4) uint8."""
    numbers = layout.rows_per_page * layout.dimension
    step = max(1, WIDE_BYTES // (4 * numbers))
    for part in parts:
        for first in range(0, len(part), step):
            yield widened(part[first : first + step, : 2 * numbers].view("<i2")).view(np.uint8)


def widened(halves: npt.NDArray[np.int16]) -> Float32:
    """The bits of finite float16 numbers -> the same numbers in float32. Five times as fast as NumPy's own cast."""
    # Sign, exponent and mantissa move to where float32 has them; the exponents' biases differ by 112.
    bits = np.left_shift(halves, 13, dtype=np.int32)
    np.bitwise_and(bits, np.int32(-0x70002000), out=bits)
    wide = bits.view(np.float32)
    np.multiply(wide, np.float32(2.0**112), out=wide)
    return wide

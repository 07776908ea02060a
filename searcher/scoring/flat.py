"""The kernel of flat codecs: products of float32 or float16 rows with queries.

There are two ways to compute them. As dot products, each row is multiplied by all queries while it
is in the nearest cache. As matrix products over batches of pages, OpenBLAS uses its kernels for
small matrices, which do not pack their operands. Which one is faster for how many queries depends
on the processor and its memory; rows of 384 from memory, GB/s of one thread, on three machines:

    queries                        1    2    3    5    8   10   20
    dot products, AVX2            32   25   24   16   11    9    4
    matrix products, AVX2         30   10    9    9   10    8    6
    dot products, AVX-512         22    9    9    8    7    6    4
    matrix products, AVX-512      28   27   24   21   20   16   13
    dot products, AVX-512         20   15   11    7    4
    matrix products, AVX-512       9   13   10    9    8    9    8

So it is measured, once in a process. float16 rows are widened first, 1.5 ms for 10,240 of 384.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
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
"""Pages of a batch where even `BATCH_PAGES_MIN` make a large product: then packing is cheap."""
QUERIES_FEW_MAX = 7
"""For more queries dot products are never faster."""
TRIAL_BYTES = 32 << 20
"""Bytes of the rows that both ways are measured on: more than the caches of one core."""
TRIALS = 3
MARGIN = 32
"""Numbers behind the rows of a page that dot products read too, times zero."""
CHECKSUM_BYTES = 8
LINE_BYTES = 64
"""A cache line. Queries that begin at its start are multiplied up to a fifth faster (AVX-512)."""
_FLOAT32 = np.dtype("<f4")
_measuring = threading.Lock()


class FlatKernel:
    """Implements `ScoringKernel` by the way that is faster on this machine."""

    def prepare(self, layout: PageLayout, queries: Float32) -> FlatQueries:
        """Returns queries for `layout`; see `ScoringKernel.prepare`."""
        return FlatQueries(layout, queries)


class FlatQueries:
    """Implements `PreparedQueries`."""

    def __init__(self, layout: PageLayout, queries: Float32) -> None:
        if queries.shape[1] != layout.dimension:
            raise ValueError(
                f"dimension mismatch: queries of {queries.shape[1]} numbers, vectors of "
                f"{layout.dimension}"
            )
        self._wide = layout if layout.vector_dtype == "float16" else None
        way = _DotProducts if len(queries) <= queries_few(layout) else _MatrixProducts
        self._way = way(layout, queries)

    def write(self, parts: Sequence[UInt8], scores: Float32) -> None:
        """Writes scores; see `PreparedQueries.write`. Releases the GIL meanwhile."""
        self._way.write(parts if self._wide is None else _widened(self._wide, parts), scores)


def queries_few(layout: PageLayout) -> int:
    """Returns up to how many queries dot products are faster for: 0 to `QUERIES_FEW_MAX`.

    The first call in a process for `layout` measures it, some 0.2 s on one core. Thread-safe.
    """
    with _measuring:
        return _measured(layout)


@cache
def _measured(layout: PageLayout) -> int:
    counts = range(1, QUERIES_FEW_MAX + 1)
    times = _times_s(layout, counts)
    # The best limit for all counts together: one disturbed measurement decides little.
    totals_s = [
        sum(dots_s if count <= few else matrix_s for count, (dots_s, matrix_s) in times.items())
        for few in range(QUERIES_FEW_MAX + 1)
    ]
    return totals_s.index(min(totals_s))


def _times_s(layout: PageLayout, counts: Iterable[int]) -> dict[int, tuple[float, float]]:
    """Seconds that each number of queries takes as dot products and as matrix products."""
    page_bytes = _page_bytes(layout)
    # float16 rows are multiplied in the cache where they were widened.
    trial_bytes = WIDE_BYTES if layout.vector_dtype == "float16" else TRIAL_BYTES
    pages = np.empty((max(1, trial_bytes // page_bytes), page_bytes), np.uint8)
    pages.fill(0)  # else all pages map to one page of zeros, which stays in the cache
    times = {}
    with threadpool_limits(limits=1, user_api="blas"):
        for count in counts:
            queries = np.ones((layout.dimension, count), np.float32).T
            scores = np.empty((len(pages) * layout.rows_per_page, count), np.float32)
            dots, matrix = _DotProducts(layout, queries), _MatrixProducts(layout, queries)
            tries = [
                (_seconds(dots, pages, scores), _seconds(matrix, pages, scores))
                for _ in range(TRIALS)
            ]
            times[count] = (
                min(dots_s for dots_s, _ in tries),
                min(matrix_s for _, matrix_s in tries),
            )
    return times


def _seconds(way: _DotProducts | _MatrixProducts, pages: UInt8, scores: Float32) -> float:
    began_s = time.perf_counter()
    way.write([pages], scores)
    return time.perf_counter() - began_s


def _page_bytes(layout: PageLayout) -> int:
    """Bytes of a page as it is multiplied: float16 rows are widened, row numbers left out."""
    return (
        layout.page_bytes
        if layout.vector_dtype == "float32"
        else 4 * layout.dimension * layout.rows_per_page
    )


class _DotProducts:
    """Dot products, in the order of memory.

    Between the rows of two pages are row numbers, zeros and a checksum. The processor's prefetcher
    stops at a gap of 512 bytes, and reading then takes 2.5 times as long. So every dot product
    reads `MARGIN` numbers more, and multiplies them by zero.
    """

    def __init__(self, layout: PageLayout, queries: Float32) -> None:
        self._dimension, self._rows_per_page = layout.dimension, layout.rows_per_page
        hole_bytes = (
            _page_bytes(layout) - CHECKSUM_BYTES - self._rows_per_page * self._dimension * 4
        )
        margin = min(MARGIN, max(0, hole_bytes // 4))
        self._weights = _zeros(len(queries), self._dimension + margin)
        self._weights[:, : self._dimension] = queries

    def write(self, parts: Iterable[UInt8], scores: Float32) -> None:
        """Multiplies the rows of `parts`; see `PreparedQueries.write`."""
        with np.errstate(invalid="ignore"):
            end = self._write(parts, scores, self._weights)
        # Row numbers above 2**31 may read as infinite, and zero times infinity is NaN.
        if self._weights.shape[1] > self._dimension and end and math.isnan(scores[:end].min()):
            self._write(parts, scores, self._weights[:, : self._dimension])

    def _write(self, parts: Iterable[UInt8], scores: Float32, weights: Float32) -> int:
        count, width = weights.shape
        start = 0
        for pages in parts:
            shape = (len(pages), self._rows_per_page, 1, width)
            runs: Float32 = np.ndarray(
                shape, _FLOAT32, pages, 0, (pages.shape[1], self._dimension * 4, 0, 4)
            )
            end = start + len(pages) * self._rows_per_page
            np.vecdot(
                runs, weights, out=scores[start:end].reshape(len(pages), self._rows_per_page, count)
            )
            start = end
        return start


def _zeros(count: int, width: int) -> Float32:
    """Zeros, (count, width), that begin at the start of a cache line."""
    room = np.zeros(count * width + LINE_BYTES // 4, np.float32)
    start = -room.__array_interface__["data"][0] % LINE_BYTES // 4
    return room[start : start + count * width].reshape(count, width)


class _MatrixProducts:
    """Matrix products of as many rows as suit the kernels."""

    def __init__(self, layout: PageLayout, queries: Float32) -> None:
        self._dimension, self._rows_per_page = layout.dimension, layout.rows_per_page
        self._weights = np.ascontiguousarray(queries.T)
        count = len(queries)
        self._batch_pages = None if count == 1 else _batch_pages(count, self._dimension)

    def write(self, parts: Iterable[UInt8], scores: Float32) -> None:
        """Multiplies the rows of `parts`; see `PreparedQueries.write`."""
        start = 0
        for pages in parts:
            end = start + len(pages) * self._rows_per_page
            self._write(pages, scores[start:end])
            start = end

    def _write(self, pages: UInt8, scores: Float32) -> None:
        row_numbers = self._rows_per_page * self._dimension
        vectors = (
            pages[:, : row_numbers * 4]
            .view("<f4")
            .reshape(-1, self._rows_per_page, self._dimension)
        )
        batch_pages = self._batch_pages or len(vectors)
        whole = len(vectors) // max(1, batch_pages) * batch_pages
        middle = whole * self._rows_per_page
        _multiply_batches(vectors[:whole], batch_pages, self._weights, scores[:middle])
        _multiply_batches(vectors[whole:], len(vectors) - whole, self._weights, scores[middle:])


def _batch_pages(count: int, dimension: int) -> int:
    pages = BATCH_PRODUCTS_MAX // (count * dimension) // BATCH_PAGES_MIN * BATCH_PAGES_MIN
    return min(pages or BATCH_PAGES_LARGE, BATCH_PAGES_LARGE)


def _multiply_batches(
    vectors: Float32, batch_pages: int, weights: Float32, scores: Float32
) -> None:
    """(pages, rows_per_page, dim) times (dim, q) into (pages * rows_per_page, q).

    A batch is the rows at one place of `batch_pages` neighbouring pages: a matrix whose stride is a
    page, which BLAS takes without a copy.
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


def _widened(layout: PageLayout, parts: Sequence[UInt8]) -> Iterator[UInt8]:
    """Yields the rows of `parts` as float32, some pages at a time: (n, rows * dim * 4) uint8."""
    numbers = layout.rows_per_page * layout.dimension
    step = max(1, WIDE_BYTES // (4 * numbers))
    for part in parts:
        for first in range(0, len(part), step):
            yield widened(part[first : first + step, : 2 * numbers].view("<i2")).view(np.uint8)


def widened(halves: npt.NDArray[np.int16]) -> Float32:
    """Finite float16 numbers, as bits -> the same numbers in float32, faster than NumPy's cast."""
    # Sign, exponent and mantissa move to where float32 has them; the exponents' biases differ by
    # 112.
    bits = np.left_shift(halves, 13, dtype=np.int32)
    np.bitwise_and(bits, np.int32(-0x70002000), out=bits)
    wide = bits.view(np.float32)
    np.multiply(wide, np.float32(2.0**112), out=wide)
    return wide

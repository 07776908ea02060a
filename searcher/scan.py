"""The scan: scores all rows of a cluster, as its pages lie in memory, for all queries that want it, in one call.

No float32 row is copied. Few queries are dot products: each row is multiplied by all of them while it is in the nearest
cache, and comes from memory as fast as memory gives it. More are one batched matrix product over the pages, in batches small
enough for OpenBLAS's kernels for small matrices, which do not pack their operands. Which is better depends on the kernels
that OpenBLAS takes here; rows of 384 in memory, and not in a cache, GB/s of one thread:

    queries                        1    2    3    5    8   10   20
    dot products, AVX2            32   25   24   16   11    9    4
    matrix products, AVX2         30   10    9    9   10    8    6
    dot products, AVX-512         22    9    9    8    7    6    4
    matrix products, AVX-512      28   27   24   21   20   16   13

float16 rows are widened into a scratch first, 1.5 ms for 10,240 of 384.

Scores depend in their last bits (a few 1e-7 for vectors of length one) on where a row lies in its batch, so on how a cluster
is cut into pieces and on how many queries are scored together, as those of FAISS depend on its own kernels. Rows whose
scores differ by less may change places; nothing else does. Vectors and queries must be finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

from carpool.disk.pages import ClusterPages, PageLayout, UInt8
from searcher.top_k import Candidates, Float32, Int64, Slots, best_of_each

SCORES_BYTES = 4 << 20
"""Scores that are held at a time. The first of them set the floor for the rest, so more at a time leave fewer candidates."""
WIDE_BYTES = 1 << 19
"""float16 rows that are widened at a time."""
BATCH_PRODUCTS_MAX = 1_000_000
"""Multiplications of a batch. OpenBLAS takes a matrix product for a small one up to 100**3."""
BATCH_PAGES_MIN = 8
"""Below this a small product is slower than a large one."""
BATCH_PAGES_LARGE = 512
"""Where not even that is small: as many as make packing cheap."""
QUERIES_FEW = 7
"""So few queries cost less as dot products than as a matrix product, but where that runs on AVX-512."""
WIDE_KERNELS = ("SkylakeX", "Cooperlake", "SapphireRapids")
"""OpenBLAS's names of the kernels that are made of AVX-512. `OPENBLAS_CORETYPE`, if it is set, decides which it takes."""
BLOCK_PAGES_MIN = 64
"""Pages whose scores are held at a time, also where they are more than `SCORES_BYTES`."""
MARGIN = 32
"""Numbers that the dot products of one query run on for, into the hole at the end of a page."""
CHECKSUM_BYTES = 8
GROUP_ROWS_MAX = 16
"""Rows whose best score stands for all of them at first."""


def score_pages(pages: ClusterPages, queries: Float32, floors: Float32, top_ks: Slots) -> Candidates:
    """Returns what `pages` have for `queries`: every row among the cluster's best k whose score is not below the floor.

    `queries`: (q, dim) float32, q >= 1, fastest where (dim, q) is contiguous; `floors`: (q,) float32, -inf for none, a row that
    ties with it is kept; `top_ks`: (q,), how many each wants. Pure and thread-safe, with 4 to 6 MB of scratch (for thousands
    of queries more); holds no view of the pages afterwards. The heavy parts release the GIL.
    """
    layout = pages.layout
    count = len(queries)
    block_pages = max(BLOCK_PAGES_MIN, SCORES_BYTES // (4 * count * layout.rows_per_page))
    row_room = min(pages.row_count + layout.rows_per_page, block_pages * layout.rows_per_page) + GROUP_ROWS_MAX
    scratch = np.empty((row_room, count), np.float32)
    floors = floors.copy()
    found: list[tuple[Slots, Float32, Int64]] = []
    found_count, found_max = 0, 4 * int(top_ks.sum())
    for row_count, parts in _blocks(pages, block_pages):
        multiply(layout, parts, queries, scratch)
        query, scores, positions, floors = above(scratch, row_count, floors, top_ks)
        if not len(query):
            continue
        found.append((query, scores, row_numbers_at(layout, parts, positions)))
        found_count += len(query)
        if found_count > found_max:
            found = [_best(found, top_ks)]
            found_count = len(found[0][0])
    query, scores, rows = _joined(found)
    return Candidates(query, scores, rows, floors)


def _blocks(pages: ClusterPages, block_pages: int) -> Iterator[tuple[int, list[UInt8]]]:
    """Yields runs of at most `block_pages` pages, as slices of the pieces, with the rows in each run."""
    rows_per_page = pages.layout.rows_per_page
    rows_left = pages.row_count
    parts: list[UInt8] = []
    room = block_pages
    for piece in pages.pieces:
        start = 0
        while start < len(piece) and rows_left > 0:
            part = piece[start : start + room]
            parts.append(part)
            start += len(part)
            room -= len(part)
            if not room:
                rows = min(rows_left, block_pages * rows_per_page)
                yield rows, parts
                rows_left -= rows
                parts, room = [], block_pages
    if parts and rows_left > 0:
        yield min(rows_left, (block_pages - room) * rows_per_page), parts


def multiply(layout: PageLayout, parts: list[UInt8], queries: Float32, scores: Float32) -> None:
    """Writes the scores of the rows of `parts`, in order, into the first rows of `scores`: (rows, q).

    Raises `ValueError` for queries of another dimension.
    """
    if queries.shape[1] != layout.dimension:
        raise ValueError(f"dimension mismatch: queries of {queries.shape[1]} numbers, vectors of {layout.dimension}")
    start = 0
    for pages in _widened(layout, parts) if layout.vector_dtype == "float16" else parts:
        end = start + len(pages) * layout.rows_per_page
        if len(queries) > QUERIES_FEW or has_wide_kernels():
            _multiply_many(layout, pages, queries, scores[start:end])
        else:
            _multiply_few(layout, pages, queries, scores[start:end])
        start = end


@cache
def has_wide_kernels() -> bool:
    """Whether NumPy's matrix products run on AVX-512 kernels of OpenBLAS."""
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    of_numpy = [library for library in libraries if "numpy" in library["filepath"]] or libraries
    return any(library.get("architecture") in WIDE_KERNELS for library in of_numpy)


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


def above(scratch: Float32, row_count: int, floors: Float32, top_ks: Slots) -> tuple[Slots, Float32, Slots, Float32]:
    """Returns queries, scores and positions of the rows that may enter, and the floors raised by what was seen.

    Looks at the best score of each group of rows first; the k-th best of those is a floor, for k rows are not below it.
    """
    query_count = len(floors)
    group_rows = max(1, min(GROUP_ROWS_MAX, row_count // (8 * int(top_ks.max()))))
    group_count = -(-row_count // group_rows)
    scratch[row_count : group_rows * group_count] = -np.inf
    grouped = scratch[: group_rows * group_count].reshape(group_rows, group_count, query_count)
    highest: Float32 = grouped.max(axis=0) if group_rows > 1 else grouped[0]
    hits = highest >= floors
    if np.count_nonzero(hits) > 2 * int(top_ks.sum()):
        floors = np.maximum(floors, _kth_best(highest, top_ks))
        hits = highest >= floors
    group, query = np.divmod(np.flatnonzero(hits), query_count)
    scores = grouped[:, group, query]
    member, which = np.nonzero(scores >= floors[query])
    positions = member * group_count + group[which]
    real = positions < row_count
    if not real.all():
        member, which, positions = member[real], which[real], positions[real]
    return query[which], scores[member, which], positions, floors


def _kth_best(scores: Float32, top_ks: Slots) -> Float32:
    """The k-th best of each column, -inf where there are fewer: (n, q) -> (q,)."""
    count, query_count = scores.shape
    if count < top_ks.min():
        return np.full(query_count, -np.inf, np.float32)
    places = np.maximum(count - top_ks, 0)
    parted = np.partition(scores.T, sorted(set(places.tolist())), axis=1)
    kth: Float32 = np.where(top_ks <= count, parted[np.arange(query_count), places], np.float32(-np.inf))
    return kth


def row_numbers_at(layout: PageLayout, parts: list[UInt8], positions: Slots) -> Int64:
    page, place = np.divmod(positions, layout.rows_per_page)
    if len(parts) == 1:
        only: Int64 = layout.row_numbers(parts[0])[page, place]
        return only
    rows: Int64 = np.empty(len(positions), np.int64)
    first = 0
    for part in parts:
        here = np.flatnonzero((page >= first) & (page < first + len(part)))
        rows[here] = layout.row_numbers(part)[page[here] - first, place[here]]
        first += len(part)
    return rows


def _joined(found: list[tuple[Slots, Float32, Int64]]) -> tuple[Slots, Float32, Int64]:
    if len(found) == 1:
        return found[0]
    if not found:
        return np.empty(0, np.intp), np.empty(0, np.float32), np.empty(0, np.int64)
    query, scores, rows = (np.concatenate(column) for column in zip(*found, strict=True))
    return query, scores, rows


def _best(found: list[tuple[Slots, Float32, Int64]], top_ks: Slots) -> tuple[Slots, Float32, Int64]:
    query, scores, rows = _joined(found)
    kept, _ = best_of_each(query, scores, rows, top_ks)
    return query[kept], scores[kept], rows[kept]

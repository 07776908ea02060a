"""The scan: scores all rows of a cluster, as its pages lie in memory, for all queries that want it,
in one call.

No float32 row is copied (`searcher.scoring.products`). Of the scores only those that may enter a
result are looked at one by one: blocks of rows, whose best stands for all of them, are compared
with a floor first.

Scores depend in their last bits (a few 1e-7 for vectors of length one) on where a row lies in its
batch, so on how a cluster is cut into pieces, on how many queries are scored together, and on the
kernels that were the faster ones at start, as those of FAISS depend on its own. Rows whose scores
differ by less may change places; nothing else does. Vectors and queries must be finite.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from carpool.disk.pages import ClusterPages, PageLayout, UInt8
from searcher.scoring.products import Products
from searcher.scoring.top_k import Candidates, Float32, Int64, Slots, best_of_each

SCORES_BYTES = 4 << 20
"""Scores that are held at a time. The first of them set the floor for the rest, so more at a time
leave fewer candidates.
"""
BLOCK_PAGES_MIN = 64
"""Pages whose scores are held at a time, also where they are more than `SCORES_BYTES`."""
GROUP_ROWS_MAX = 16
"""Rows whose best score stands for all of them at first."""


def score_pages(
    pages: ClusterPages, queries: Float32, floors: Float32, top_ks: Slots
) -> Candidates:
    """Returns what `pages` have for `queries`: every row among the cluster's best k whose score is
    not below the floor.

    `queries`: (q, dim) float32, q >= 1, fastest where (dim, q) is contiguous; `floors`: (q,)
    float32, -inf for none, a row that ties with it is kept; `top_ks`: (q,), how many each wants.
    Pure and thread-safe, with 4 to 6 MB of scratch (for thousands of queries more); holds no view
    of the pages afterwards. The heavy parts release the GIL.
    """
    layout = pages.layout
    count = len(queries)
    block_pages = max(BLOCK_PAGES_MIN, SCORES_BYTES // (4 * count * layout.rows_per_page))
    row_room = (
        min(pages.row_count + layout.rows_per_page, block_pages * layout.rows_per_page)
        + GROUP_ROWS_MAX
    )
    scratch = np.empty((row_room, count), np.float32)
    floors = floors.copy()
    products = Products(layout, queries)
    found: list[tuple[Slots, Float32, Int64]] = []
    found_count, found_max = 0, 4 * int(top_ks.sum())
    for row_count, parts in _blocks(pages, block_pages):
        products.write(parts, scratch)
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
    """Yields runs of at most `block_pages` pages, as slices of the pieces, with the rows in each
    run.
    """
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


def above(
    scratch: Float32, row_count: int, floors: Float32, top_ks: Slots
) -> tuple[Slots, Float32, Slots, Float32]:
    """Returns queries, scores and positions of the rows that may enter, and the floors raised by
    what was seen.

    Looks at the best score of each group of rows first; the k-th best of those is a floor, for k
    rows are not below it.
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
    kth: Float32 = np.where(
        top_ks <= count, parted[np.arange(query_count), places], np.float32(-np.inf)
    )
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

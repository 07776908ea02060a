"""The scan: scores the rows of clusters, as their pages are stored, for a batch of queries.

The scores of a block of rows are computed. Groups of rows are then compared with a floor by their
best score, and only the rows of groups that pass are compared one by one.

Scores depend in their last bits (a few 1e-7 for vectors of length one) on how clusters are cut into
blocks, and on how many queries are scored together. Rows whose scores differ by less may change
places. Vectors and queries must be finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from carpool.arrays import Float32, Int64, UInt8
from carpool.codes.row_mask import RowMask, visible
from carpool.disk.pages import ClusterPages
from searcher.scoring.products import write_scores
from searcher.scoring.top_k import LEAST, NO_FLOOR, Candidates, Slots, best_of_each, concatenated

SCORES_BYTES = 4 << 20
"""Scores in memory at a time. The first of them set the floor for the rest."""
BLOCK_PAGES_MIN = 64
"""Pages whose scores are in memory at a time, even if that is more than `SCORES_BYTES`."""
GROUP_ROWS_MAX = 16
"""Rows whose best score stands for all of them at first."""
COPY_BYTES_MAX = 128 << 10
"""Parts up to this mean size are copied together: one product then costs less."""


GATHERED_SHARE = 0.25
"""Pages with visible rows are copied together where these are fewer than so many times the pages.

Else all pages are scored.
"""
Bool = npt.NDArray[np.bool_]


class QueryBatch(NamedTuple):
    """Queries: `slots` (n,) of a `TopTable`, each once; `vectors` (n, dim) float32.

    Scoring is fastest where `vectors` is stored as (dim, n) contiguous.
    """

    slots: Slots
    vectors: Float32

    def take(self, members: Slots) -> QueryBatch:
        """Returns some of the queries, in the layout that is scored fastest."""
        return QueryBatch(self.slots[members], np.take(self.vectors.T, members, axis=1).T)


class Scoring(NamedTuple):
    """A cluster and the queries that want it: `members` (q,), positions in a batch, each once.

    `mask`: the rows that they may find; None: all.
    """

    pages: ClusterPages
    members: Slots
    mask: RowMask | None = None


class _BlockPart(NamedTuple):
    """Pages of one cluster in a block: rows from `start` to `end`, the first `row_count` in use.

    `first_page`: number of the first of them, as in `ClusterExtent`. With a mask, `are_shown`: of
    the rows, and `numbers` of these where pages were gathered.
    """

    scoring: Scoring
    pages: UInt8
    start: int
    row_count: int
    end: int
    first_page: int
    are_shown: Bool | None
    numbers: Int64 | None


def scan(
    scorings: Sequence[Scoring],
    batch: QueryBatch,
    floors: Float32,
    top_ks: Slots,
) -> tuple[Candidates, Float32]:
    """Returns each row that may be among the best k of a query, and the floors that it reached.

    `scorings` has at least one, all of one layout. `floors` is (q,) float32, -inf for none; a row
    that ties with the floor is a candidate. `top_ks`, (q,), is how many rows each query wants.
    Pure and thread-safe; keeps no view of the pages. Takes 4 to 6 MB of scratch, more for thousands
    of queries. The heavy steps release the GIL. Raises `ValueError` where dimensions differ.
    """
    layout = scorings[0].pages.layout
    rows_per_page = layout.rows_per_page
    block_pages = max(BLOCK_PAGES_MIN, SCORES_BYTES // (4 * len(batch.slots) * rows_per_page))
    pages_max = min(block_pages, sum(len(p) for one in scorings for p in one.pages.pieces))
    scratch = np.empty((pages_max * rows_per_page + GROUP_ROWS_MAX, len(batch.slots)), np.float32)
    floors = np.maximum(floors, LEAST)
    weights = np.ascontiguousarray(batch.vectors.T)
    found: list[Candidates] = []
    found_count, found_max = 0, 4 * int(top_ks.sum())
    for block in _blocks(scorings, block_pages, rows_per_page):
        pages = _joined_pages([part.pages for part in block])
        write_scores(layout, pages, weights, scratch)
        for part in block:
            _clear_unwanted(part, scratch)
        query, scores, positions, floors = above(scratch, block[-1].end, floors, top_ks)
        if not len(query):
            continue
        rows = _places_at(block, positions, rows_per_page)
        found.append(Candidates(query, scores, rows, _clusters_at(block, positions)))
        found_count += len(query)
        if found_count > found_max:
            found = [_best(found, top_ks)]
            found_count = len(found[0].scores)
    if not found:
        ids = np.empty(0, np.int64)
        return Candidates(np.empty(0, np.intp), np.empty(0, np.float32), ids, ids), floors
    every = concatenated(found)
    return every._replace(slots=batch.slots[every.slots]), floors


def _blocks(
    scorings: Sequence[Scoring], block_pages: int, rows_per_page: int
) -> Iterator[list[_BlockPart]]:
    """Yields all visible rows in order, at most `block_pages` pages at a time."""
    block: list[_BlockPart] = []
    room, place = block_pages, 0
    for scoring in scorings:
        rows_left, page = scoring.pages.row_count, scoring.pages.first_page
        pieces = zip(scoring.pages.pieces, _shown(scoring.pages, scoring.mask), strict=True)
        for whole, (piece, shown, numbers) in pieces:
            start, end_page = 0, page + len(whole)
            while start < len(piece) and rows_left > 0:
                pages = piece[start : start + room]
                end = place + len(pages) * rows_per_page
                rows = min(rows_left, end - place)
                some = slice(start * rows_per_page, start * rows_per_page + end - place)
                own = None if shown is None else shown[some]
                known = None if numbers is None else numbers[some]
                block.append(_BlockPart(scoring, pages, place, rows, end, page, own, known))
                page += len(pages)
                start += len(pages)
                room -= len(pages)
                rows_left -= rows
                place = end
                if not room:
                    yield block
                    block, room, place = [], block_pages, 0
            page = end_page
    if block:
        yield block


def _shown(
    pages: ClusterPages, mask: RowMask | None
) -> Iterator[tuple[UInt8, Bool | None, Int64 | None]]:
    """Yields pieces, and which of their rows are shown; with row numbers where few are gathered."""
    if mask is None:
        yield from ((piece, None, None) for piece in pages.pieces)
        return
    rows_per_page = pages.layout.rows_per_page
    first_row = pages.first_page * rows_per_page
    every = np.zeros(sum(map(len, pages.pieces)) * rows_per_page, np.bool_)
    every[: pages.row_count] = visible(mask, first_row, pages.row_count)
    start = 0
    for piece in pages.pieces:
        first, start = start, start + len(piece) * rows_per_page
        shown, numbers = every[first:start], None
        if (count := np.count_nonzero(shown)) < GATHERED_SHARE * len(piece):
            by_page = shown.reshape(-1, rows_per_page)
            kept = np.flatnonzero(by_page.any(axis=1)) if count else slice(0)
            numbers = np.arange(first_row + first, first_row + start).reshape(by_page.shape)[kept]
            piece, shown, numbers = piece[kept], by_page[kept].reshape(-1), numbers.reshape(-1)
        yield piece, shown, numbers


def _joined_pages(parts: list[UInt8]) -> list[UInt8]:
    if len(parts) > 1 and sum(part.nbytes for part in parts) <= COPY_BYTES_MAX * len(parts):
        return [np.concatenate(parts)]
    return parts


def _clear_unwanted(part: _BlockPart, scores: Float32) -> None:
    """Clears scores of rows that are hidden or not in use, and of queries that do not want them."""
    if part.are_shown is not None:
        scores[part.start : part.end][~part.are_shown] = NO_FLOOR
    elif part.row_count < part.end - part.start:
        scores[part.start + part.row_count : part.end] = NO_FLOOR
    if len(part.scoring.members) < scores.shape[1]:
        is_unwanted = np.ones(scores.shape[1], bool)
        is_unwanted[part.scoring.members] = False
        scores[part.start : part.end, is_unwanted] = NO_FLOOR


def _clusters_at(block: list[_BlockPart], positions: Slots) -> Int64:
    """Returns the clusters of the rows at `positions` of a block: (m,) -> (m,) int64."""
    if len(block) == 1:
        return np.full(len(positions), block[0].scoring.pages.cluster, np.int64)
    clusters = np.array([part.scoring.pages.cluster for part in block], np.int64)
    ends = [part.end for part in block]
    return clusters[np.searchsorted(ends, positions, side="right")]


def _places_at(block: list[_BlockPart], positions: Slots, rows_per_page: int) -> Int64:
    """Returns the row numbers at `positions` of a block: (m,) -> (m,) int64."""
    offsets = np.array([part.first_page * rows_per_page - part.start for part in block], np.int64)
    ends = [part.end for part in block]
    owners = np.searchsorted(ends, positions, side="right")
    rows = positions + offsets[owners]
    for at, part in enumerate(block):
        if part.numbers is not None and (own := owners == at).any():
            rows[own] = part.numbers[positions[own] - part.start]
    return rows


def above(
    scratch: Float32, row_count: int, floors: Float32, top_ks: Slots
) -> tuple[Slots, Float32, Slots, Float32]:
    """Returns queries, scores and positions of the rows that may be results, and raised floors.

    The k-th best of the best scores of groups is a floor, since k rows are not below it. Floors
    must be at least `LEAST`.
    """
    query_count = len(floors)
    group_rows = max(1, min(GROUP_ROWS_MAX, row_count // (8 * int(top_ks.max()))))
    group_count = -(-row_count // group_rows)
    scratch[row_count : group_rows * group_count] = NO_FLOOR
    grouped = scratch[: group_rows * group_count].reshape(group_rows, group_count, query_count)
    highest: Float32 = grouped.max(axis=0) if group_rows > 1 else grouped[0]
    hits = highest >= floors
    if np.count_nonzero(hits) > 2 * int(top_ks.sum()):
        floors = np.maximum(floors, _kth_best(highest, top_ks))
        hits = highest >= floors
    group, query = np.divmod(np.flatnonzero(hits), query_count)
    scores = grouped[:, group, query]
    member, which = np.nonzero(scores >= floors[query])
    return query[which], scores[member, which], member * group_count + group[which], floors


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


def _best(found: list[Candidates], top_ks: Slots) -> Candidates:
    every = concatenated(found)
    kept, _ = best_of_each(every.slots, every.scores, every.rows, top_ks)
    return Candidates(every.slots[kept], every.scores[kept], every.rows[kept], every.clusters[kept])

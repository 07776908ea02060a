"""The best results of all queries in progress, in one table and one exact order.

The order is that of scores, highest first, and of row numbers where scores are equal. Candidates of
many queries, from one cluster or from several, are merged in one call: the k-th best score of a
query is a floor: candidates below it are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from carpool.arrays import Float32, Int64
from schemas.query import TOP_K_MAX

Slots = npt.NDArray[np.intp]

NO_FLOOR = np.float32(-np.inf)
LEAST = np.finfo(np.float32).min
"""The least score. A smaller number marks a missing score."""
_SLOTS_AT_START = 128


class TopK(NamedTuple):
    """The best rows, best first; equal scores in the order of row numbers. `scores`: (n,) float32,
    the others (n,) int64.
    """

    scores: Float32
    rows: Int64
    clusters: Int64


class Candidates(NamedTuple):
    """Rows that may be results, in no order: one entry for each row and query.

    `slots`: (m,) of a `TopTable`; `scores`: (m,) float32; `rows` and `clusters`: (m,) int64.
    """

    slots: Slots
    scores: Float32
    rows: Int64
    clusters: Int64


def concatenated(parts: Sequence[Candidates]) -> Candidates:
    """Returns all candidates of `parts`, at least one, in order."""
    if len(parts) == 1:
        return parts[0]
    return Candidates(
        np.concatenate([part.slots for part in parts]),
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.clusters for part in parts]),
    )


class TopTable:
    """The best results of each query in progress, by slot; a few KB each. Not thread-safe.

    Grows with the queries in progress; the caller limits them.
    """

    def __init__(self) -> None:
        """An empty table."""
        self._top_ks = np.zeros(0, np.intp)
        self._scores = np.empty((0, TOP_K_MAX), np.float32)
        self._rows = np.empty((0, TOP_K_MAX), np.int64)
        self._clusters = np.empty((0, TOP_K_MAX), np.int64)
        self._free: list[int] = []

    def __len__(self) -> int:
        """The number of queries."""
        return len(self._top_ks) - len(self._free)

    def add(self, top_k: int) -> int:
        """Returns the slot of a new query that wants `top_k` results, 1 to `TOP_K_MAX`; lower slots
        are used first.

        Raises `ValueError` for another `top_k`.
        """
        if not 1 <= top_k <= TOP_K_MAX:
            raise ValueError(f"top_k is {top_k}: a result holds 1 to {TOP_K_MAX} rows")
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._top_ks[slot] = top_k
        self._scores[slot] = NO_FLOOR
        return slot

    def remove(self, slot: int) -> None:
        """Forgets a query; its slot may be given to the next. Raises `KeyError` if it is
        unknown.
        """
        self._check(slot)
        self._top_ks[slot] = 0
        self._free.append(slot)

    def floors(self, slots: Slots) -> Float32:
        """Returns the k-th best score of each query, -inf where it has fewer: (q,) slots -> (q,)
        float32, a copy.
        """
        floors: Float32 = self._scores[slots, self._top_ks[slots] - 1]
        return floors

    def top_ks(self, slots: Slots) -> Slots:
        """Returns how many results each query wants: (q,) slots -> (q,), a copy."""
        top_ks: Slots = self._top_ks[slots]
        return top_ks

    def merge(self, found: Iterable[Candidates]) -> None:
        """Enters candidates into the results of their queries.

        A row must not come twice for a query, in this call or a later one. One call for several
        clusters costs less than a call for each.
        """
        parts = [part for part in found if len(part.slots)]
        if parts:
            self._enter(concatenated(parts))

    def best(self, slot: int) -> TopK:
        """Returns the best results so far, at most the query's `top_k`: copies. Raises `KeyError`
        if it is unknown.
        """
        self._check(slot)
        top_k = self._top_ks[slot]
        count = int(np.count_nonzero(self._scores[slot, :top_k] > NO_FLOOR))
        return TopK(
            self._scores[slot, :count].copy(),
            self._rows[slot, :count].copy(),
            self._clusters[slot, :count].copy(),
        )

    def _enter(self, new: Candidates) -> None:
        touched = np.unique(new.slots)
        depth = int(self._top_ks[touched].max())
        known = self._scores[touched, :depth]
        at, rank = np.nonzero(known > NO_FLOOR)
        holders = touched[at]
        slots = np.concatenate([holders, new.slots])
        scores = np.concatenate([known[at, rank], new.scores])
        rows = np.concatenate([self._rows[holders, rank], new.rows])
        clusters = np.concatenate([self._clusters[holders, rank], new.clusters])
        kept, ranks = best_of_each(slots, scores, rows, self._top_ks)
        slots = slots[kept]
        self._scores[slots, ranks] = scores[kept]
        self._rows[slots, ranks] = rows[kept]
        self._clusters[slots, ranks] = clusters[kept]

    def _check(self, slot: int) -> None:
        if not (0 <= slot < len(self._top_ks) and self._top_ks[slot]):
            raise KeyError(f"no query at slot {slot}")

    def _grow(self) -> None:
        held = len(self._top_ks)
        added = max(_SLOTS_AT_START, held)
        self._top_ks = np.concatenate([self._top_ks, np.zeros(added, np.intp)])
        self._scores = np.concatenate([self._scores, np.full((added, TOP_K_MAX), NO_FLOOR)])
        self._rows = np.concatenate([self._rows, np.zeros((added, TOP_K_MAX), np.int64)])
        self._clusters = np.concatenate([self._clusters, np.zeros((added, TOP_K_MAX), np.int64)])
        self._free.extend(range(held + added - 1, held - 1, -1))


def best_of_each(
    queries: Slots, scores: Float32, rows: Int64, top_ks: Slots
) -> tuple[Slots, Slots]:
    """Returns the positions of the best `top_ks[query]` candidates of each query, and the rank of
    each.

    `queries`, `scores` and `rows` are (m,), with finite scores; `top_ks` is by query. Sorted by
    query, score and row number.
    """
    # One integer sorts by query and falling score. The bits of a float sort like the number once
    # those of the negative ones are flipped, and adding zero makes one zero of two.
    bits = (scores + np.float32(0)).view(np.uint32)
    rising = bits ^ (-(bits >> 31) | np.uint32(1 << 31))
    keys = (queries.astype(np.uint64) << np.uint64(32)) | ~rising
    order: Slots = np.argsort(keys)
    in_order = keys[order]
    equal = in_order[1:] == in_order[:-1]
    if equal.any():
        # Ties are adjacent, so sorting only the ties does not move any other candidate.
        ties = np.zeros(len(order), bool)
        ties[1:] = equal
        ties[:-1] |= equal
        tied = order[ties]
        order[ties] = tied[np.lexsort((rows[tied], keys[tied]))]
    query = queries[order]
    counts = np.bincount(query, minlength=len(top_ks))
    starts = np.cumsum(counts) - counts
    ranks = np.arange(len(query)) - starts[query]
    kept = ranks < top_ks[query]
    return order[kept], ranks[kept]

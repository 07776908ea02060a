"""The scan of small clusters: all products first, those that nobody asked for too, then one
selection for all queries.

Where clusters have some rows each, a call a cluster costs more than its rows do: 60 us, and 1 ms
for the 16 of a window. So their pages are put together, and a product that nobody wants costs next
to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from searcher.scoring.products import Products
from searcher.scoring.query_batch import QueryBatch, Scoring
from searcher.scoring.top_k import LEAST, NO_FLOOR, Candidates, Float32, Scored, Slots


def score_jointly(
    scorings: Sequence[Scoring], asked: QueryBatch, floors: Float32, top_ks: Slots
) -> Scored:
    """Returns what clusters of one layout have for those asked; as `score_pages` does it for each
    cluster.

    `scorings`: at least one; `floors`, `top_ks`: (n,), of those asked. Copies the pages, and holds
    4 bytes for every row and query: keep both few.
    """
    layout = scorings[0].pages.layout
    pages = np.concatenate([piece for scoring in scorings for piece in scoring.pages.pieces])
    rooms = [sum(map(len, scoring.pages.pieces)) * layout.rows_per_page for scoring in scorings]
    ends = list(accumulate(rooms))
    scores = np.empty((ends[-1], len(asked.slots)), np.float32)
    Products(layout, asked.vectors).write([pages], scores)
    for scoring, room, end in zip(scorings, rooms, ends, strict=True):
        scores[end - room + scoring.pages.row_count : end] = (
            NO_FLOOR  # what is unused of its last page
        )
        if len(scoring.members) < len(asked.slots):
            does_not = np.ones(len(asked.slots), bool)
            does_not[scoring.members] = False
            scores[end - room : end, does_not] = NO_FLOOR
    if (top_k := int(top_ks.max())) <= len(scores):
        kth = np.partition(scores, len(scores) - top_k, axis=0)[len(scores) - top_k]
        floors = np.maximum(floors, kth)  # of those who want fewer it is lower than it might be
    positions, query = np.nonzero(scores >= np.maximum(floors, LEAST))
    clusters = np.array([scoring.pages.cluster for scoring in scorings], np.int64)
    rows = layout.row_numbers(pages).reshape(-1)[positions]
    candidates = Candidates(query, scores[positions, query], rows, floors)
    return Scored(clusters[np.searchsorted(ends, positions, side="right")], asked.slots, candidates)

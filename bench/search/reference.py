"""The exact answers that contestants are judged by. Pure, but for reading the index."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bench.data.clusters import open_clusters, read_clusters
from bench.search.contestants.contestant import Float32, Int64, SearchData

MARGIN = 10
"""This many more than top_k are found, so that the scores of ties are known."""
TOLERANCE = 1e-5
"""Scores nearer than this are equal: the order of float32 sums changes the last bits."""


class BestRows(NamedTuple):
    """The best rows of each query, best first: `rows` (n, count) int64, -1 where there is none, and
    their `scores` (n, count) float32.
    """

    rows: Int64
    scores: Float32

    @classmethod
    def none_of(cls, queries: int, count: int) -> BestRows:
        """Returns no rows."""
        return cls(
            np.full((queries, count), -1, np.int64), np.full((queries, count), -np.inf, np.float32)
        )

    def enter(self, members: Int64, rows: Int64, scores: Float32) -> None:
        """Enters rows of one cluster: scores (len(members), len(rows)), for these queries."""
        count = self.rows.shape[1]
        taken = np.argpartition(-scores, min(count, len(rows)) - 1, axis=1)[:, :count]
        every = np.concatenate([self.scores[members], np.take_along_axis(scores, taken, 1)], axis=1)
        ids = np.concatenate([self.rows[members], rows[taken]], axis=1)
        kept = np.argsort(-every, axis=1, kind="stable")[:, :count]
        self.scores[members] = np.take_along_axis(every, kept, 1)
        self.rows[members] = np.take_along_axis(ids, kept, 1)

    def recall(self, found: Int64) -> float:
        """Returns the share of these rows that is in `found`, (n, top_k) int64, -1 where none.

        A row whose score ties with the last of the best top_k counts; a row counts once.
        """
        hits, wanted = 0, 0
        for ids, rows, scores in zip(found, self.rows, self.scores, strict=True):
            there = int(np.count_nonzero(rows[: len(ids)] >= 0))
            if not there:
                continue
            good = rows[(rows >= 0) & (scores >= scores[there - 1] - TOLERANCE)]
            hits += min(there, len(np.intersect1d(ids, good)))
            wanted += there
        return hits / max(wanted, 1)


class Reference(NamedTuple):
    """The best of all rows, and those of the clusters that each query probes."""

    of_all: BestRows
    of_probed: BestRows


def exact_answers(data: SearchData) -> Reference:
    """Scores every row for every query. Reads the index once; needs memory for one cluster."""
    queries, count = np.ascontiguousarray(data.queries), data.top_k + MARGIN
    every = np.arange(len(queries))
    of_all, of_probed = (BestRows.none_of(len(queries), count) for _ in range(2))
    for cluster in read_clusters(open_clusters(data.index_dir)):
        if not len(cluster.rows):
            continue
        scores = queries @ cluster.vectors.T
        of_all.enter(every, cluster.rows, scores)
        members = np.flatnonzero((data.probes == cluster.cluster).any(axis=1))
        if len(members):
            of_probed.enter(members, cluster.rows, scores[members])
    return Reference(of_all, of_probed)

"""The ids of a contestant against those of FAISS IVF-Flat in memory. Pure."""

from __future__ import annotations

import numpy as np

from bench.baselines.contestant import Float32, Int64
from bench.core.agreement import TOLERANCE, Agreement, Ranking, Verdict, agreement, compare

MARGIN = 10
"""The reference finds this many more than top_k, so that the scores of ties are known."""


def check_exact(found: Int64, expected: Int64, scores: Float32) -> Agreement:
    """Returns how the ids of a contestant compare with the reference's. A row a query, best first.

    `found`: (n, top_k) int64, -1 where there is none; `expected`: (n, top_k + MARGIN) int64 and
    their `scores`, float32. An id that the reference does not have is `different`.
    """
    return agreement(
        (str(number), *_verdict(*rows))
        for number, rows in enumerate(zip(found, expected, scores, strict=True))
    )


def recall_of(found: Int64, expected: Int64, scores: Float32) -> float:
    """Returns the share of the expected ids that were found; equal scores have no order.

    Shapes as in `check_exact`. An id whose score ties with the last expected one counts.
    """
    top_k = found.shape[1]
    hits, wanted = 0, 0
    for ids, rows, of_rows in zip(found, expected, scores, strict=True):
        there = int(np.count_nonzero(rows[:top_k] >= 0))
        if not there:
            continue
        good = rows[(rows >= 0) & (of_rows >= of_rows[there - 1] - TOLERANCE)]
        hits += min(there, int(np.isin(ids[ids >= 0], good).sum()))
        wanted += there
    return hits / max(wanted, 1)


def _verdict(found: Int64, expected: Int64, scores: Float32) -> tuple[Verdict, str]:
    top_k = len(found)
    if np.array_equal(found, expected[:top_k]):
        return "same", ""
    score_of = {
        int(row): float(score) for row, score in zip(expected, scores, strict=True) if row >= 0
    }
    ids = [int(row) for row in found if row >= 0]
    unknown = [row for row in ids if row not in score_of]
    if unknown:
        return (
            "different",
            f"row {unknown[0]} is not among the first {len(score_of)} of the reference",
        )
    true_scores = [score_of[row] for row in ids]
    wanted = [int(row) for row in expected[:top_k] if row >= 0]
    return compare(
        Ranking(ids=tuple(map(str, ids)), scores=tuple(true_scores)),
        Ranking(ids=tuple(map(str, wanted)), scores=tuple(score_of[row] for row in wanted)),
        true_scores,
    )

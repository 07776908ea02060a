"""Is a contestant that claims to be exact exact? Its ids against those of FAISS IVF-Flat in memory.
Pure functions.
"""

from __future__ import annotations

import numpy as np

from bench.core.agreement import Agreement, Ranking, Verdict, agreement, compare
from bench.retrieval.contestant import Float32, Int64

MARGIN = 10
"""The reference finds as many more as this than are asked for, so that the score of what stands in
for an equal is known.
"""


def check_exact(found: Int64, expected: Int64, scores: Float32, numbers: list[int]) -> Agreement:
    """Returns how the ids of a contestant compare with the reference's. All arrays have a row a
    query, best first.

    `found`: (n, top_k) int64, -1 where there is none; `expected`: (n, top_k + MARGIN) int64 and
    their `scores`, float32; `numbers`: the rows to look at. An id that the reference does not have
    among its own and the margin is `different`.
    """
    verdicts = [
        (str(number), *_verdict(found[number], expected[number], scores[number]))
        for number in numbers
    ]
    return agreement(verdicts)


def _verdict(found: Int64, expected: Int64, scores: Float32) -> tuple[Verdict, str]:
    top_k = len(found)
    if np.array_equal(found, expected[:top_k]):
        return "same", ""
    score_of = {
        int(row): float(score) for row, score in zip(expected, scores, strict=True) if row >= 0
    }
    ids = [int(row) for row in found if row >= 0]
    strangers = [row for row in ids if row not in score_of]
    if strangers:
        return (
            "different",
            f"row {strangers[0]} is not among the first {len(score_of)} of the reference",
        )
    true_scores = [score_of[row] for row in ids]
    wanted = [int(row) for row in expected[:top_k] if row >= 0]
    return compare(
        Ranking(ids=tuple(map(str, ids)), scores=tuple(true_scores)),
        Ranking(ids=tuple(map(str, wanted)), scores=tuple(score_of[row] for row in wanted)),
        true_scores,
    )

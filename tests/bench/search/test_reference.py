"""The exact answers, and recall against them."""

from __future__ import annotations

import numpy as np
import pytest

from bench.data.exact import MARGIN, BestRows, exact_answers
from bench.search.contestants.contestant import SearchData, chunks_of


def test_recall_counts_expected_ids_and_those_that_tie_with_the_last_once() -> None:
    rows = np.arange(3 + MARGIN, dtype=np.int64)[None].repeat(4, 0)
    scores = np.linspace(0.9, 0.5, 3 + MARGIN, dtype=np.float32)[None].repeat(4, 0)
    scores[1, 3] = scores[1, 2] - 5e-6  # the fourth ties with the third
    best = BestRows(rows, scores)
    found = np.array([[2, 0, 1], [0, 1, 3], [0, 9, -1], [0, 0, 1]], dtype=np.int64)
    assert best.recall(found) == (3 + 3 + 1 + 2) / 12
    rows[2, 1:] = -1  # only one row there
    assert best.recall(found) == (3 + 3 + 1 + 2) / 10


def test_the_best_rows_are_those_of_a_sort(
    data: SearchData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.search.contestants.contestant.CHUNK_ROWS", 150)
    found = exact_answers(chunks_of(data.vectors), data.tuning, data.top_k)
    order = np.argsort(-(data.tuning @ np.load(data.vectors).T), axis=1)
    assert (found.rows == order[:, : data.top_k + MARGIN]).all()

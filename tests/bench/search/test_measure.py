"""The measurement: windows and clients, and the search for settings."""

from __future__ import annotations

import numpy as np
import pytest

from bench.data.exact import MARGIN, BestRows, exact_answers
from bench.search.child import ChildRequest, measure, tune
from bench.search.contestants.contestant import (
    TOP_K,
    Contestant,
    Float32,
    Int64,
    SearchData,
    chunks_of,
)
from tests.bench.helpers import unit_rows

QUERIES = unit_rows(np.random.default_rng(3), 50, 16)


class Counting(Contestant):
    """Finds as many of ten rows as the setting says; keeps the sizes of its windows."""

    settings = (1, 2, 4, 7, 8)

    def __init__(self) -> None:
        self.asked: list[int] = []

    def build(self, data: SearchData) -> None:
        pass

    def open(self, data: SearchData) -> None:
        pass

    def search(self, queries: Float32, setting: int) -> Int64:
        self.asked.append(len(queries))
        found = np.arange(10)
        found[setting:] = -1
        return found[None].repeat(len(queries), 0)


@pytest.mark.parametrize(("window", "clients"), [(8, 1), (1, 4), (50, 2)])
def test_every_query_is_asked_once_and_every_answer_is_kept(window: int, clients: int) -> None:
    contestant = Counting()
    request = ChildRequest(setting=7, window=window, clients=clients)
    figures, ids = measure(contestant, QUERIES, request)
    assert figures.queries == sum(contestant.asked) == 50
    assert figures.latency_ms.count == len(contestant.asked) == -(-50 // window)
    assert (ids == [*range(7), -1, -1, -1]).all() and ids.shape == (50, 10)


def test_the_lowest_setting_that_reaches_a_recall_is_found() -> None:
    best = BestRows(np.arange(10)[None].repeat(50, 0), np.ones((50, 10), np.float32))
    assert tune(Counting(), QUERIES, best, (0.35, 0.4, 0.8, 0.81)) == ((4, 4, 8, None), 0.8)


# ---- the exact answers, and recall against them


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
    found = exact_answers(chunks_of(data.vectors), data.tuning, TOP_K)
    order = np.argsort(-(data.tuning @ np.load(data.vectors).T), axis=1)
    assert (found.rows == order[:, : TOP_K + MARGIN]).all()

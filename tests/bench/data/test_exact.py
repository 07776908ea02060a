"""Ids against an exact search: what is the same, what is a tie, and what is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.data.exact import MemorySearch, Ranking

TRUE = {"a": 0.9, "b": 0.8, "c": 0.7, "near": 0.700009, "far": 0.70002, "low": 0.1}
QUERY = np.array([1, 0], dtype=np.float32)
EXPECTED = Ranking(ids=("a", "b", "c"), scores=(0.9, 0.8, 0.7))


@pytest.mark.parametrize(
    ("ids", "scores", "verdict"),
    [
        ("a b c", (0.9, 0.8, 0.7), "same"),
        ("a b near", (0.9, 0.8, 0.700009), "tied"),
        ("a b far", (0.9, 0.8, 0.70002), "different"),
        ("a b low", (0.9, 0.8, 0.7), "different"),  # a lie
        ("a b c", (0.9, 0.8, 0.6), "different"),
        ("a b unknown", (0.9, 0.8, 0.7), "different"),
        ("a b", (0.9, 0.8), "different"),
        ("a b c low", (0.9, 0.8, 0.7, 0.1), "different"),
        ("a a b", (0.9, 0.9, 0.8), "different"),
    ],
)
def test_another_id_is_a_tie_only_where_its_true_score_is_equal(
    ids: str, scores: tuple[float, ...], verdict: str
) -> None:
    rows = np.array([(each, math.sqrt(1 - each**2)) for each in TRUE.values()], np.float32)
    search = MemorySearch(list(TRUE), rows, rows[:2])
    assert (
        search.verdict(QUERY, Ranking(ids=tuple(ids.split()), scores=scores), EXPECTED) == verdict
    )


def test_faiss_in_memory_finds_what_sorting_by_hand_finds() -> None:
    generator = np.random.default_rng(7)
    vectors = generator.standard_normal((60, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = [f"p{row}" for row in range(60)]
    centroids = vectors[:6]
    search = MemorySearch(ids, vectors, centroids)
    query = (
        vectors[41:42] * 0.6 + vectors[3:4] * 0.4
    )  # not in the middle: equal scores have no order
    scores = vectors @ query[0]
    by_hand = np.argsort(-scores)[:5]
    (flat,) = search.flat(query, 5)
    assert flat.ids == tuple(ids[row] for row in by_hand)
    assert flat.scores == pytest.approx(scores[by_hand], abs=1e-6)
    # Two clusters probed: only the rows that are nearest to one of them.
    cluster_of = (vectors @ centroids.T).argmax(axis=1)
    probed = np.argsort(-(centroids @ query[0]))[:2]
    rows = [row for row in np.argsort(-scores) if cluster_of[row] in probed][:5]
    (ivf,) = search.ivf(query, 5, 2)
    assert ivf.ids == tuple(ids[row] for row in rows)
    assert search.ivf(query, 5, 6) == [flat]


def test_a_cluster_with_fewer_rows_than_asked_for_gives_fewer_hits() -> None:
    vectors = np.eye(4, dtype=np.float32)
    search = MemorySearch(["a", "b", "c", "d"], vectors, vectors[:2])
    (ranking,) = search.ivf(vectors[1:2], 5, 1)
    assert ranking.ids == ("b",)

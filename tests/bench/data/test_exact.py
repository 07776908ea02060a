"""Ids against an exact search: what is the same, what is a tie, and what is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.data.exact import MemorySearch, Ranking, compare

EXPECTED = Ranking(ids=("a", "b", "c"), scores=(0.9, 0.8, 0.7))


@pytest.mark.parametrize(
    ("ids", "scores", "true_scores", "verdict"),
    [
        ("abc", (0.9, 0.8, 0.7), (0.9, 0.8, 0.7), "same"),
        ("abd", (0.9, 0.8, 0.700009), (0.9, 0.8, 0.700009), "tied"),
        ("abd", (0.9, 0.8, 0.70002), (0.9, 0.8, 0.70002), "different"),
        ("abd", (0.9, 0.8, 0.7), (0.9, 0.8, 0.1), "different"),  # a lie
        ("abx", (0.9, 0.8, 0.7), (0.9, 0.8, math.nan), "different"),  # an unknown passage
        ("ab", (0.9, 0.8), (0.9, 0.8), "different"),
        ("abcd", (0.9, 0.8, 0.7, 0.6), (0.9, 0.8, 0.7, 0.6), "different"),
        ("aab", (0.9, 0.9, 0.8), (0.9, 0.9, 0.8), "different"),
    ],
)
def test_another_id_is_a_tie_only_where_its_true_score_is_equal(
    ids: str, scores: tuple[float, ...], true_scores: tuple[float, ...], verdict: str
) -> None:
    found = Ranking(ids=tuple(ids), scores=scores)
    assert compare(found, EXPECTED, true_scores) == verdict


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
    assert search.true_scores(query[0], flat.ids) == pytest.approx(scores[by_hand], abs=1e-6)
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
    assert np.isnan(search.true_scores(vectors[0], ["nobody"])[0])

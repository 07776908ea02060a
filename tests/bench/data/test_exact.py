"""Ids against an exact search: what is the same, what is a tie, and what is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.data.exact import BestRows, exact_answers, ivf_answers, verdict

TRUE = {"a": 0.9, "b": 0.8, "c": 0.7, "near": 0.700009, "far": 0.70002, "low": 0.1}
QUERY = np.array([1, 0], dtype=np.float32)
EXPECTED = BestRows(np.array([0, 1, 2, -1]), np.array([0.9, 0.8, 0.7, -1], np.float32))


@pytest.mark.parametrize(
    ("ids", "scores", "expected"),
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
    ids: str, scores: tuple[float, ...], expected: str
) -> None:
    vectors = np.array([(each, math.sqrt(1 - each**2)) for each in TRUE.values()], np.float32)
    row_of = {name: row for row, name in enumerate(TRUE)}
    found = [(row_of.get(each, -1), score) for each, score in zip(ids.split(), scores, strict=True)]
    assert verdict(vectors, QUERY, found, EXPECTED) == expected


def test_faiss_in_memory_finds_what_sorting_by_hand_finds() -> None:
    generator = np.random.default_rng(7)
    vectors = generator.standard_normal((60, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    centroids = vectors[:6]
    query = (
        vectors[41:42] * 0.6 + vectors[3:4] * 0.4
    )  # not in the middle: equal scores have no order
    scores = vectors @ query[0]
    by_hand = np.argsort(-scores)[:5]
    flat = exact_answers([(0, vectors)], query, 5)
    assert flat.rows[0, :5].tolist() == by_hand.tolist()
    assert flat.scores[0, :5] == pytest.approx(scores[by_hand], abs=1e-6)
    # Two clusters probed: only the rows that are nearest to one of them.
    cluster_of = (vectors @ centroids.T).argmax(axis=1)
    probed = np.argsort(-(centroids @ query[0]))[:2]
    rows = [row for row in np.argsort(-scores) if cluster_of[row] in probed][:5]
    assert ivf_answers(vectors, centroids, query, 5, 2).rows.tolist() == [rows]
    assert ivf_answers(vectors, centroids, query, 5, 6).rows.tolist() == [by_hand.tolist()]


def test_a_cluster_with_fewer_rows_than_asked_for_gives_fewer_hits() -> None:
    vectors = np.eye(4, dtype=np.float32)
    found = ivf_answers(vectors, vectors[:2], vectors[1:2], 5, 1)
    assert found.rows.tolist() == [[1, -1, -1, -1, -1]]

"""Ids against an exact search: what is the same, what is a tie, and what is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.core.agreement import Ranking, agreement, compare
from bench.data.exact import MemorySearch

EXPECTED = Ranking(ids=("a", "b", "c"), scores=(0.9, 0.8, 0.7))


def found(ids: str, *scores: float) -> Ranking:
    return Ranking(ids=tuple(ids), scores=scores)


@pytest.mark.parametrize(
    ("ids", "scores", "true_scores", "verdict", "why"),
    [
        ("abc", (0.9, 0.8, 0.7), (0.9, 0.8, 0.7), "same", ""),
        ("abd", (0.9, 0.8, 0.700009), (0.9, 0.8, 0.700009), "tied", ""),
        ("abd", (0.9, 0.8, 0.70002), (0.9, 0.8, 0.70002), "different", "rank 3: d instead of c"),
        ("abd", (0.9, 0.8, 0.7), (0.9, 0.8, 0.1), "different", "has score 0.1"),  # a lie
        ("abx", (0.9, 0.8, 0.7), (0.9, 0.8, math.nan), "different", ""),  # an unknown passage
    ],
)
def test_another_id_is_a_tie_only_where_its_true_score_is_equal(
    ids: str, scores: tuple[float, ...], true_scores: tuple[float, ...], verdict: str, why: str
) -> None:
    found_verdict, found_why = compare(found(ids, *scores), EXPECTED, true_scores)
    assert found_verdict == verdict
    assert why in found_why


@pytest.mark.parametrize(
    ("ids", "scores"),
    [("ab", (0.9, 0.8)), ("abcd", (0.9, 0.8, 0.7, 0.6)), ("aab", (0.9, 0.9, 0.8))],
)
def test_fewer_hits_more_hits_and_repeated_hits_are_different(
    ids: str, scores: tuple[float, ...]
) -> None:
    assert compare(found(ids, *scores), EXPECTED, scores)[0] == "different"


def test_one_difference_breaks_the_agreement_and_is_shown() -> None:
    total = agreement([("q-1", "same", ""), ("q-2", "tied", ""), ("q-3", "different", "rank 1")])
    assert (total.same, total.tied, total.different, total.holds) == (1, 1, 1, False)
    assert total.examples == ("q-3: rank 1",)
    assert agreement([("q-1", "same", ""), ("q-2", "tied", "")]).holds


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

"""Eq. 2 of CaGR-RAG for all pairs of a window at once."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grouper.plan.jaccard import jaccard_matrix

CLUSTER_SETS = st.lists(
    st.lists(st.integers(0, 12), min_size=1, max_size=8, unique=True).map(tuple),
    max_size=12,
)


def test_similarity_is_what_is_shared_over_what_is_touched() -> None:
    similarity = jaccard_matrix([(1, 2, 3, 4), (3, 4, 5, 6), (9,), (4, 3, 2, 1)])
    third = 2 / 6
    expected = [[1, third, 0, 1], [third, 1, 0, third], [0, 0, 1, 0], [1, third, 0, 1]]
    assert similarity.tolist() == expected
    assert similarity.dtype == np.float64


def test_sets_of_different_sizes_are_compared_by_their_union() -> None:
    assert jaccard_matrix([(0, 1, 2), (2,)])[0, 1] == 1 / 3


def test_an_empty_window_has_an_empty_matrix() -> None:
    assert jaccard_matrix([]).shape == (0, 0)


def test_cluster_ids_may_be_as_large_as_any_index_has() -> None:
    assert jaccard_matrix([(0, 2**31 - 1), (2**31 - 1, 5)]).tolist() == [[1.0, 1 / 3], [1 / 3, 1.0]]


@given(CLUSTER_SETS)
def test_the_matrix_product_equals_counting_pair_by_pair(clusters: list[tuple[int, ...]]) -> None:
    similarity = jaccard_matrix(clusters)
    for i, a in enumerate(clusters):
        for j, b in enumerate(clusters):
            # Exactly the nearest float64, so that a threshold written as a decimal compares as one
            # expects.
            assert similarity[i, j] == float(Fraction(len({*a} & {*b}), len({*a} | {*b})))

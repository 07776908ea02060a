"""Exact top-k against the dumb version, and its ties."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from carpool.disk.segment import ClusterRows
from searcher.scoring import merge, score_cluster


def cluster_of(number: int, vectors: list[list[float]], rows: list[int]) -> ClusterRows:
    shaped = np.array(vectors, dtype=np.float32).reshape(len(rows), -1)
    return ClusterRows(number, shaped, np.array(rows, dtype=np.int64))


def test_the_best_rows_come_first_with_their_scores_and_cluster() -> None:
    cluster = cluster_of(7, [[1, 0], [0, 1], [0.5, 0.5]], [30, 10, 20])
    top = score_cluster(cluster, np.array([1, 0], dtype=np.float32), 2)
    assert top.rows.tolist() == [30, 20]
    assert top.scores.tolist() == [1.0, 0.5]
    assert top.clusters.tolist() == [7, 7]


def test_equal_scores_are_ordered_by_row_number_also_where_top_k_cuts_between_them() -> None:
    cluster = cluster_of(0, [[1.0]] * 6, [9, 3, 7, 1, 8, 5])
    assert score_cluster(cluster, np.ones(1, dtype=np.float32), 3).rows.tolist() == [1, 3, 5]


def test_an_empty_cluster_and_no_cluster_at_all_give_nothing() -> None:
    empty = ClusterRows(1, np.empty((0, 4), np.float32), np.empty(0, np.int64))
    nothing = score_cluster(empty, np.ones(4, dtype=np.float32), 5)
    assert [len(column) for column in nothing] == [0, 0, 0]
    assert [len(column) for column in merge([], 5)] == [0, 0, 0]
    assert len(merge([nothing, nothing], 5).rows) == 0


def test_a_result_holds_no_view_of_the_cluster() -> None:
    cluster = cluster_of(0, [[1, 0], [0, 1]], [5, 6])
    top = score_cluster(cluster, np.array([1, 0], dtype=np.float32), 5)
    for column in top:
        assert not np.shares_memory(column, cluster.vectors)
        assert not np.shares_memory(column, cluster.rows)


# Few distinct values, so that ties are common.
VALUES = st.integers(-2, 2)


@given(
    clusters=st.lists(st.lists(st.tuples(VALUES, VALUES), max_size=12), min_size=1, max_size=4),
    query=st.tuples(VALUES, VALUES),
    top_k=st.integers(1, 9),
    order=st.randoms(use_true_random=False),
)
def test_merged_clusters_equal_a_sort_of_everything(
    clusters: list[list[tuple[int, int]]], query: tuple[int, int], top_k: int, order: object
) -> None:
    numbers = list(range(sum(map(len, clusters))))
    order.shuffle(numbers)  # type: ignore[attr-defined]
    everything, parts, vector = [], [], np.array(query, dtype=np.float32)
    for number, vectors in enumerate(clusters):
        rows = [numbers.pop() for _ in vectors]
        everything += [(-(a * query[0] + b * query[1]), row, number) for (a, b), row in zip(vectors, rows, strict=True)]
        shaped = np.array(vectors, dtype=np.float32).reshape(len(rows), 2)
        parts.append(score_cluster(ClusterRows(number, shaped, np.array(rows, dtype=np.int64)), vector, top_k))
    best = merge(parts, top_k)
    expected = sorted(everything)[:top_k]
    found = zip((-best.scores).tolist(), best.rows.tolist(), best.clusters.tolist(), strict=True)
    assert [(score + 0.0, row, cluster) for score, row, cluster in found] == expected

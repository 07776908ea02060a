"""The exact answers, and recall against them."""

from __future__ import annotations

import numpy as np

from bench.data.clusters import open_clusters, read_clusters
from bench.search.contestants.contestant import SearchData
from bench.search.reference import MARGIN, BestRows, exact_answers


def test_recall_counts_expected_ids_and_those_that_tie_with_the_last_once() -> None:
    rows = np.arange(3 + MARGIN, dtype=np.int64)[None].repeat(4, 0)
    scores = np.linspace(0.9, 0.5, 3 + MARGIN, dtype=np.float32)[None].repeat(4, 0)
    scores[1, 3] = scores[1, 2] - 5e-6  # the fourth ties with the third
    best = BestRows(rows, scores)
    found = np.array([[2, 0, 1], [0, 1, 3], [0, 9, -1], [0, 0, 1]], dtype=np.int64)
    assert best.recall(found) == (3 + 3 + 1 + 2) / 12
    rows[2, 1:] = -1  # only one row there
    assert best.recall(found) == (3 + 3 + 1 + 2) / 10


def test_the_best_of_all_and_of_the_probed_clusters_are_those_of_a_sort(data: SearchData) -> None:
    found = exact_answers(data)
    clusters = [*read_clusters(open_clusters(data.index_dir))]
    for query, probes in enumerate(data.probes):
        for best, wanted in (
            (found.of_all, clusters),
            (found.of_probed, [one for one in clusters if one.cluster in probes]),
        ):
            rows = np.concatenate([one.rows for one in wanted])
            scores = np.concatenate([one.vectors for one in wanted]) @ data.queries[query]
            expected = rows[np.argsort(-scores)][: data.top_k]
            assert best.rows[query, : data.top_k].tolist() == expected.tolist()

"""Candidates are ranked by exact rows of a file, whatever pages the rows are on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.data.clusters import open_clusters, read_clusters
from bench.search.contestants.contestant import SearchData
from bench.search.contestants.mapped_rows import MappedRows, best_rows, write_rows
from tests.bench.search.conftest import unit_rows


def test_a_file_of_rows_has_each_row_at_its_number(data: SearchData, tmp_path: Path) -> None:
    index = open_clusters(data.index_dir)
    write_rows(index, tmp_path / "rows.f32")
    rows = np.fromfile(tmp_path / "rows.f32", "<f4").reshape(-1, data.queries.shape[1])
    for cluster in read_clusters(index):
        assert np.array_equal(rows[cluster.rows], cluster.vectors)


@pytest.mark.parametrize("dimension", [16, 384, 1500])  # many to a page, some, and two pages each
def test_candidates_are_ranked_by_exact_scores(dimension: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    rows, queries = unit_rows(rng, 500, dimension), unit_rows(rng, 30, dimension)
    rows.tofile(tmp_path / "rows.f32")
    candidates = np.stack([rng.permutation(500)[:40] for _ in queries])
    candidates[3] = -1
    candidates[5, 2:] = -1
    candidates[7, 0] = 499  # the last row: its last page is not whole
    mapped = MappedRows(tmp_path / "rows.f32", dimension)
    try:
        found = list(mapped.rank(queries, candidates, 10))
    finally:
        mapped.close()
    for query, taken, best in zip(queries, candidates, found, strict=True):
        there = taken[taken >= 0]
        assert best.tolist() == there[np.argsort(-(rows[there] @ query))][:10].tolist()
    assert [len(best) for best in found[3:6]] == [0, 10, 2]


def test_equal_scores_are_ordered_by_number() -> None:
    rows, scores = np.array([7, 3, 5, 1]), np.array([0.5, 0.9, 0.5, 0.1], np.float32)
    assert best_rows(rows, scores, 3).tolist() == [3, 5, 7]

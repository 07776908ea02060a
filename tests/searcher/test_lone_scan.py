"""A lone query's clusters scanned together give what a full sort gives, however they are cut and
whoever takes the stretches.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.disk.pages import ClusterPages, VectorDtype, choose_layout, encode_pages
from searcher.scoring import lone_scan
from searcher.scoring import pool as scoring_pool
from searcher.scoring.lone_scan import LoneScan
from searcher.scoring.pool import ScoringPool
from searcher.scoring.query_batch import QueryBatch, Scoring
from searcher.scoring.top_k import TopTable

Float32 = npt.NDArray[np.float32]


def make(
    sizes: list[int], dimension: int, dtype: VectorDtype, generator: np.random.Generator
) -> tuple[list[ClusterPages], Float32, npt.NDArray[np.int64]]:
    """Clusters of small whole numbers, whose scores are exact and tie often; their rows, shuffled
    over the clusters.
    """
    layout = choose_layout(dimension, dtype)
    vectors = generator.integers(-2, 3, (sum(sizes), dimension)).astype(np.float32)
    rows = generator.permutation(sum(sizes)) + int(generator.choice([0, 0xFF7FFF00]))
    clusters, start = [], 0
    for number, size in enumerate(sizes):
        pages = encode_pages(
            layout, vectors[start : start + size], rows[start : start + size], seed=number
        )
        pieces = tuple(np.array_split(pages, min(len(pages), 1 + number % 3)))
        clusters.append(ClusterPages(number, layout, size, pieces))
        start += size
    return clusters, vectors, rows


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 200), min_size=1, max_size=6),
    dimension=st.sampled_from([3, 40, 384]),
    dtype=st.sampled_from(["float32", "float16"]),
    top_k=st.sampled_from([1, 3, 100]),
    has_floor=st.booleans(),
    stretch_bytes=st.sampled_from([1, 1 << 14, 1 << 20]),
    seed=st.integers(0, 1 << 16),
)
def test_it_finds_what_a_full_sort_finds(
    sizes: list[int],
    dimension: int,
    dtype: VectorDtype,
    top_k: int,
    has_floor: bool,
    stretch_bytes: int,
    seed: int,
) -> None:
    generator = np.random.default_rng(seed)
    clusters, vectors, rows = make(sizes, dimension, dtype, generator)
    query = generator.integers(-2, 3, dimension).astype(np.float32)
    scores = vectors @ query
    best = np.lexsort((rows, -scores))[:top_k]
    floor = float(scores[best[len(best) // 2]]) if has_floor and len(best) else -np.inf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lone_scan, "STRETCH_BYTES_MIN", stretch_bytes)
        scan = LoneScan(clusters[0].layout)
        others, _, _ = make([300, 7], dimension, dtype, generator)
        scan.begin(others, query, top_k=100, floor=-np.inf, threads=1)  # leaves nothing behind
        for piece in scan.work():
            piece()
        assert scan.best().scores[0] == max(scan.best().scores)
        scan.forget()
        scan.begin(clusters, query, top_k=top_k, floor=floor, threads=2)
        pieces = list(scan.work())
        for number in generator.permutation(len(pieces)).tolist():
            pieces[number]()
        found = scan.best()
    expected = best[scores[best] >= floor]
    assert found.rows.tolist() == rows[expected].tolist()
    assert found.scores.tolist() == scores[expected].tolist()
    owner = np.repeat(np.arange(len(sizes)), sizes)
    assert found.clusters.tolist() == owner[expected].tolist()


def test_rows_worse_than_every_unused_row_of_a_page_are_found_and_unused_rows_never() -> None:
    layout = choose_layout(8, "float32")
    vectors = np.full((3, 8), -1, np.float32)  # below the zeros of unused rows
    pages = encode_pages(layout, vectors, np.array([5, 6, 7]), seed=0)
    scan = LoneScan(layout)
    scan.begin(
        [ClusterPages(0, layout, 3, (pages,)), ClusterPages(1, layout, 3, (pages,))],
        np.ones(8, np.float32),
        top_k=10,
        floor=-np.inf,
        threads=1,
    )
    for piece in scan.work():
        piece()
    found = scan.best()
    assert found.rows.tolist() == [5, 5, 6, 6, 7, 7]
    assert found.clusters.tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_stretches_hold_every_page_once_and_become_shorter(threads: int) -> None:
    clusters, _, _ = make([40_000, 0, 9_000, 70_000], 40, "float32", np.random.default_rng(0))
    pieces = [piece for cluster in clusters for piece in cluster.pieces]
    scan = LoneScan(clusters[0].layout)
    scan.begin(clusters, np.ones(40, np.float32), top_k=1, floor=0.0, threads=threads)
    works = list(scan.work())
    stretches = list(scan.stretches())
    assert len(works) == len(stretches)
    parts = [part for stretch in stretches for part in stretch]
    assert np.array_equal(np.concatenate([part.pages for part in parts]), np.concatenate(pieces))
    for cluster in clusters:
        owned = [part for part in parts if part.cluster == cluster.cluster]
        assert sum(part.row_count for part in owned) == cluster.row_count
        assert sum(len(part.pages) for part in owned) == sum(map(len, cluster.pieces))
    rows_per_page = clusters[0].layout.rows_per_page
    end = 0
    for stretch in stretches:
        assert end <= stretch[0].start < end + lone_scan.GROUP_ROWS_MAX, (
            "a stretch begins with the next group of rows"
        )
        assert stretch[0].start % lone_scan.GROUP_ROWS_MAX == 0
        for part in stretch:
            assert part is stretch[0] or part.start == end
            end = part.start + len(part.pages) * rows_per_page
    sizes = [sum(part.pages.nbytes for part in stretch) for stretch in stretches]
    if threads == 1:
        assert len(stretches) == 1
    else:
        assert sizes == sorted(sizes, reverse=True)
        assert sum(sizes[-threads:]) <= threads * lone_scan.STRETCH_BYTES_MIN, (
            "threads end at about the same time"
        )


@pytest.mark.parametrize("threads", [1, 3])
def test_the_pool_scans_a_lone_querys_clusters_together_and_the_next_ones_above_its_floor(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring_pool, "PART_COST_MIN", 4096)
    monkeypatch.setattr(lone_scan, "STRETCH_BYTES_MIN", 4096)
    monkeypatch.setattr(scoring_pool, "SMALL_BYTES_MAX", 0)
    monkeypatch.setattr(
        scoring_pool, "score_pages", lambda *given: pytest.fail("each cluster was scored by itself")
    )
    generator = np.random.default_rng(threads)
    clusters, vectors, rows = make([3_000, 700, 0, 2_000], 40, "float32", generator)
    query = generator.integers(-2, 3, (1, 40)).astype(np.float32)
    table = TopTable()
    table.add(1)
    slots = np.array([table.add(7)])
    asked, only = QueryBatch(slots, query), np.array([0])
    with ScoringPool(threads) as pool:
        first = pool.run([Scoring(cluster, only) for cluster in clusters[:2]], asked, table)
        table.merge(first)
        second = pool.run([Scoring(cluster, only) for cluster in clusters[2:]], asked, table)
        table.merge(second)
    assert len(first) == len(second) == 1
    assert (second[0].candidates.scores >= first[0].candidates.floors[0]).all()
    scores = vectors @ query[0]
    best = np.lexsort((rows, -scores))[:7]
    assert table.best(int(slots[0])).rows.tolist() == rows[best].tolist()

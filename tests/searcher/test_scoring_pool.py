"""The pool's results are those of one thread and a full sort; its threads end, and so do its
errors.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from contextlib import closing

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.arrays import UInt8
from carpool.disk.pages import ClusterPages, PageLayout, choose_layout, dense, encode_pages
from searcher.scoring import pool as scoring_pool
from searcher.scoring import scan
from searcher.scoring.pool import ScoringPool, cut_pages
from searcher.scoring.scan import QueryBatch, Scoring
from searcher.scoring.top_k import TopTable

LAYOUT = choose_layout(16, "float32")
ONLY = np.array([0])


def cluster_of(number: int, vectors: npt.NDArray[np.float32], first_page: int) -> ClusterPages:
    pages = encode_pages(LAYOUT, vectors)
    pieces = tuple(np.array_split(pages, 1 + number % 3))
    return ClusterPages(number, LAYOUT, len(vectors), pieces, first_page)


@pytest.mark.parametrize(("threads", "small_bytes"), [(1, 0), (5, 0), (2, 1 << 30)])
def test_results_are_those_of_a_full_sort_over_each_querys_clusters(
    threads: int, small_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where clusters are large and are cut, and where they are small and scored together."""
    monkeypatch.setattr(scoring_pool, "COPY_BYTES_MAX", small_bytes)
    monkeypatch.setattr(scoring_pool, "PART_COST_MIN", 1 << 40 if small_bytes else 4096)
    generator = np.random.default_rng(threads)
    # Small whole numbers: scores are exact and tie often.
    vectors = generator.integers(-2, 3, (20_000, 16)).astype(np.float32)
    assigned = np.sort(
        generator.choice(8, len(vectors), p=[0.5, 0.2, 0.1, 0.1, 0.05, 0.03, 0.02, 0.0])
    )
    sizes = np.bincount(assigned, minlength=8)
    first_pages = np.cumsum([0, *(LAYOUT.page_count(int(size)) for size in sizes)])
    clusters = [cluster_of(c, vectors[assigned == c], int(first_pages[c])) for c in range(8)]
    starts = first_pages[:8] * LAYOUT.rows_per_page - np.cumsum([0, *sizes[:7]])
    places = np.arange(len(vectors)) + starts[assigned]
    with closing(ScoringPool(threads)) as pool:
        for _ in range(4):
            table = TopTable()
            top_ks = generator.integers(1, 101, 12)
            slots = np.array([table.add(int(top_k)) for top_k in top_ks])
            queries = generator.integers(-2, 3, (12, 16)).astype(np.float32)
            wants = generator.random((8, 12)) < 0.5
            wants[:, 0] = True
            for stage in (range(3), range(3, 8)):
                scorings = [Scoring(clusters[c], np.flatnonzero(wants[c])) for c in stage]
                scored = pool.run(scorings, QueryBatch(slots, queries), table)
                if small_bytes:
                    assert len(scored) == 1
                else:
                    order = [cluster for part in scored for cluster in set(part.clusters.tolist())]
                    assert order == sorted(order)
                    assert threads == 1 or len(scored) > len(stage)
                table.merge(scored)
            for q, (slot, top_k) in enumerate(zip(slots, top_ks, strict=True)):
                rows = np.flatnonzero(wants[assigned, q])
                scores = vectors[rows] @ queries[q]
                best = np.lexsort((rows, -scores))[:top_k]
                found = table.best(int(slot))
                assert found.rows.tolist() == places[rows[best]].tolist()
                assert found.scores.tolist() == scores[best].tolist()
                assert found.clusters.tolist() == assigned[rows[best]].tolist()


@given(
    row_count=st.integers(0, 400),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    parts=st.integers(1, 30),
)
def test_cut_pages_hold_every_row_once_and_in_order(
    row_count: int, cuts: list[int], parts: int
) -> None:
    vectors = np.arange(row_count, dtype=np.float32)[:, None].repeat(16, axis=1)
    pages = encode_pages(LAYOUT, vectors)
    pieces = tuple(np.split(pages, sorted({cut % len(pages) for cut in cuts})))
    cut = list(cut_pages(ClusterPages(5, LAYOUT, row_count, pieces), parts))
    assert len(cut) == min(parts, len(pages))
    rows = []
    for part in cut:
        assert part.cluster == 5
        assert sum(map(len, part.pieces)) == LAYOUT.page_count(part.row_count)
        found = dense(part)
        assert found.rows.tolist() == found.vectors[:, 0].tolist()
        rows += found.rows.tolist()
    assert rows == list(range(row_count))
    sizes = [LAYOUT.page_count(part.row_count) for part in cut]
    assert max(sizes) - min(sizes) <= 1


def test_an_error_is_raised_after_all_threads_have_stopped_and_the_pool_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = 2
    monkeypatch.setattr(scoring_pool, "PART_COST_MIN", 4096)
    monkeypatch.setattr(scoring_pool, "COPY_BYTES_MAX", 0)
    table = TopTable()
    slots = np.array([table.add(3) for _ in range(asked)])
    members = np.arange(asked)
    good = cluster_of(0, np.ones((5000, 16), np.float32), 0)
    queries = QueryBatch(slots, np.ones((asked, 16), np.float32))
    began: list[int] = []

    def fail(layout: PageLayout, parts: Sequence[UInt8], *given: object) -> None:
        began.append(len(parts))
        raise RuntimeError("a part broke")

    with closing(ScoringPool(3)) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(scan, "write_scores", fail)
            with pytest.raises(RuntimeError, match="a part broke"):
                pool.run([Scoring(good, members)] * 5, queries, table)
        assert 1 <= len(began) <= 3, (
            "each thread that had begun stopped, and nobody took another part"
        )
        table.merge(pool.run([Scoring(good, members)], queries, table))
    assert all(table.best(int(slot)).rows.tolist() == [0, 1, 2] for slot in slots)


@pytest.mark.parametrize(("asked", "small_bytes"), [(2, 0), (1, 1 << 30)])
def test_no_page_is_held_after_a_run(
    asked: int, small_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring_pool, "PART_COST_MIN", 1 << 40 if small_bytes else 4096)
    monkeypatch.setattr(scoring_pool, "COPY_BYTES_MAX", small_bytes)
    table = TopTable()
    queries = QueryBatch(
        np.array([table.add(3) for _ in range(asked)]), np.ones((asked, 16), np.float32)
    )
    cluster = cluster_of(0, np.ones((500, 16), np.float32), 0)
    pages = weakref.ref(
        cluster.pieces[0].base if cluster.pieces[0].base is not None else cluster.pieces[0]
    )
    with closing(ScoringPool(4)) as pool:
        scored = pool.run([Scoring(cluster, np.arange(asked))] * 8, queries, table)
        assert (len(scored) == 1) == (small_bytes > 0)
        del cluster
        gc.collect()
        assert pages() is None
        assert scored


def test_a_pool_returns_nothing_for_no_scorings_and_its_threads_end_when_it_is_closed() -> None:
    before = threading.active_count()
    pool = ScoringPool(4)
    assert threading.active_count() == before + 3
    no_queries = QueryBatch(np.zeros(0, np.intp), np.zeros((0, 16), np.float32))
    assert pool.run([], no_queries, TopTable()) == []
    pool.close()
    pool.close()
    assert threading.active_count() == before

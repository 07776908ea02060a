"""Scoring over pages against the dumb version: every row scored and sorted, whatever the pieces,
the floors and the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.codes.row_mask import RowMask
from carpool.disk.pages import ClusterPages, PageLayout, VectorDtype, choose_layout, encode_pages
from searcher.scoring import products, scan
from searcher.scoring.scan import QueryBatch, Scoring
from searcher.scoring.top_k import LEAST, Candidates, TopTable
from tests.searcher.helpers import row_mask

Float32 = npt.NDArray[np.float32]


def cut(
    layout: PageLayout, vectors: Float32, cuts: Sequence[int] = (), first_page: int = 0
) -> ClusterPages:
    """Cluster 3, whose pages are cut into pieces at these pages."""
    pages = encode_pages(layout, vectors)
    pieces = tuple(np.split(pages, sorted({c % len(pages) for c in cuts})))
    return ClusterPages(3, layout, len(vectors), pieces, first_page)


def score_pages(
    pages: ClusterPages,
    queries: Float32,
    floors: Float32,
    top_ks: npt.NDArray[np.intp],
    mask: RowMask | None = None,
) -> tuple[Candidates, Float32]:
    """All of one cluster, for queries at slots 0, 1, ..."""
    every = np.arange(len(queries))
    batch = QueryBatch(every, queries)
    return scan.scan([Scoring(pages, every, mask)], batch, floors, top_ks)


def best_by_query(candidates: Candidates, top_ks: list[int]) -> list[list[tuple[float, int]]]:
    table = TopTable()
    slots = np.array([table.add(top_k) for top_k in top_ks])
    assert slots.tolist() == list(range(len(top_ks))) and set(candidates.clusters) <= {3}
    table.merge([candidates])
    return [
        list(zip(best.scores.tolist(), best.rows.tolist(), strict=True))
        for best in (table.best(s) for s in slots)
    ]


def sorted_by_hand(
    vectors: Float32, rows: npt.NDArray[np.int64], queries: Float32, top_ks: list[int]
) -> list[list[tuple[float, int]]]:
    scores = (vectors.astype(np.float64) @ queries.T.astype(np.float64)).astype(np.float32)
    return [
        [(float(scores[at, q]), int(rows[at])) for at in np.lexsort((rows, -scores[:, q]))[:top_k]]
        for q, top_k in enumerate(top_ks)
    ]


def no_floors(count: int) -> Float32:
    return np.full(count, -np.inf, np.float32)


# Small whole numbers: every score is exact in float32 (and the vectors in float16), so that the
# order must be too.
@given(
    shape=st.tuples(st.integers(0, 500), st.sampled_from([3, 7, 40, 384]), st.integers(1, 5)),
    dtype=st.sampled_from(["float32", "float16"]),
    top_ks=st.lists(st.one_of(st.integers(1, 4), st.integers(1, 100)), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 200), max_size=5),
    room=st.sampled_from([1 << 8, 1 << 14, 1 << 20]),
    batch_pages_max=st.sampled_from([3, 512]),
    first_page=st.sampled_from([0, 7, 1 << 30]),
    share=st.sampled_from([None, 0, 0.01, 0.3, 0.6, 1]),
    seed=st.integers(0, 1 << 16),
)
def test_candidates_hold_the_best_of_every_query_as_a_full_sort_finds_them(
    shape: tuple[int, int, int],
    dtype: VectorDtype,
    top_ks: list[int],
    cuts: list[int],
    room: int,
    batch_pages_max: int,
    first_page: int,
    share: float | None,
    seed: int,
) -> None:
    count, dimension, spread = shape
    generator = np.random.default_rng(seed)
    vectors = generator.integers(-spread, spread + 1, (count, dimension)).astype(np.float32)
    queries = generator.integers(-spread, spread + 1, (len(top_ks), dimension)).astype(np.float32)
    layout = choose_layout(dimension, dtype)
    rows = first_page * layout.rows_per_page + np.arange(count)
    pages = cut(layout, vectors, cuts, first_page)
    mask, shown = None, slice(None)
    if share is not None and first_page <= 7:
        are_visible = generator.random(first_page * layout.rows_per_page + count) < share
        are_visible[rows[: generator.integers(count + 1)]] = False
        mask, shown = row_mask(are_visible), are_visible[rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "SCORES_BYTES", room)
        patch.setattr(products, "WIDE_BYTES", room)
        patch.setattr(products, "BATCH_PRODUCTS_MAX", room)
        patch.setattr(products, "BATCH_PAGES_MIN", 1)
        patch.setattr(products, "BATCH_PAGES_MAX", batch_pages_max)
        found, raised = score_pages(pages, queries, no_floors(len(top_ks)), np.array(top_ks), mask)
    expected = sorted_by_hand(vectors[shown], rows[shown], queries, top_ks)
    assert best_by_query(found, top_ks) == expected
    # The floors that come back promise no more than is true, and candidates are few.
    for floor, best, top_k in zip(raised.tolist(), expected, top_ks, strict=True):
        assert floor == LEAST or (len(best) == top_k and floor <= best[-1][0])
    # With the result's own k-th score for a floor, its ties survive.
    floors = np.array(
        [
            best[-1][0] if len(best) == k else -np.inf
            for best, k in zip(expected, top_ks, strict=True)
        ]
    )
    again, _ = score_pages(pages, queries, floors.astype(np.float32), np.array(top_ks), mask)
    assert best_by_query(again, top_ks) == expected
    assert (again.scores >= floors[again.slots]).all()


@pytest.mark.parametrize(("dtype", "query_count"), [("float32", 1), ("float16", 40)])
def test_real_scores_agree_with_a_full_sort_within_the_last_bits(
    dtype: VectorDtype, query_count: int
) -> None:
    generator = np.random.default_rng(query_count)
    vectors = generator.standard_normal((3001, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = vectors[:query_count] + np.float32(0.02)
    rows = np.arange(3001)
    top_ks = [10] * query_count
    layout = choose_layout(384, dtype)
    stored = vectors if dtype == "float32" else vectors.astype(np.float16).astype(np.float32)
    expected = sorted_by_hand(stored, rows, queries, top_ks)
    for cuts in ([], [100, 101, 350]):
        found = best_by_query(
            score_pages(
                cut(layout, vectors, cuts), queries, no_floors(query_count), np.array(top_ks)
            )[0],
            top_ks,
        )
        for mine, best in zip(found, expected, strict=True):
            assert [row for _, row in mine] == [row for _, row in best]
            np.testing.assert_allclose(
                [s for s, _ in mine], [s for s, _ in best], atol=1e-6, rtol=0
            )


def test_every_finite_half_is_widened_to_the_same_number() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    wide = products.widened(halves.view(np.int16))
    assert (wide == halves.astype(np.float32)).all()
    assert (np.signbit(wide) == np.signbit(halves)).all()

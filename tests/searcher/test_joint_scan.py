"""Small clusters scored together give what a full sort gives of those that each query wants, over
one sub-stage and the next.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.disk.pages import ClusterPages, VectorDtype, choose_layout, encode_pages
from searcher.scoring.joint_scan import score_jointly
from searcher.scoring.query_batch import QueryBatch, Scoring
from searcher.scoring.top_k import TopTable


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=2, max_size=8),
    dimension=st.sampled_from([3, 40, 384]),
    dtype=st.sampled_from(["float32", "float16"]),
    top_ks=st.lists(st.sampled_from([1, 3, 100]), min_size=1, max_size=5),
    seed=st.integers(0, 1 << 16),
)
def test_it_finds_what_a_full_sort_finds(
    sizes: list[int], dimension: int, dtype: VectorDtype, top_ks: list[int], seed: int
) -> None:
    generator = np.random.default_rng(seed)
    layout = choose_layout(dimension, dtype)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    # Small whole numbers: scores are exact and tie often. Many are below the zeros of what is
    # unused of a page.
    vectors = generator.integers(-2, 2, (len(owner), dimension)).astype(np.float32)
    queries = generator.integers(-1, 3, (len(top_ks), dimension)).astype(np.float32)
    rows: npt.NDArray[np.int64] = generator.permutation(len(owner)) + int(
        generator.choice([0, 0xFF7FFF00])
    )
    wants = generator.random((len(sizes), len(top_ks))) < 0.5
    wants[np.arange(len(sizes)), generator.integers(0, len(top_ks), len(sizes))] = True
    table = TopTable()
    table.add(1)  # somebody else's
    slots = np.array([table.add(top_k) for top_k in top_ks])
    for stage in (range(len(sizes) // 2), range(len(sizes) // 2, len(sizes))):
        scorings = []
        for number in stage:
            pages = encode_pages(
                layout, vectors[owner == number], rows[owner == number], seed=number
            )
            pieces = tuple(np.array_split(pages, min(len(pages), 1 + number % 3)))
            scorings.append(
                Scoring(
                    ClusterPages(number, layout, sizes[number], pieces),
                    np.flatnonzero(wants[number]),
                )
            )
        found = score_jointly(
            scorings, QueryBatch(slots, queries), table.floors(slots), table.top_ks(slots)
        )
        assert (found.candidates.scores > -np.inf).all(), (
            "what nobody wants, and what is unused of a page, is no candidate"
        )
        table.merge([found])
    for query, (slot, top_k) in enumerate(zip(slots.tolist(), top_ks, strict=True)):
        scores = vectors @ queries[query]
        wanted = np.flatnonzero(wants[owner, query])
        best = wanted[np.lexsort((rows[wanted], -scores[wanted]))[:top_k]]
        result = table.best(slot)
        assert result.rows.tolist() == rows[best].tolist()
        assert result.scores.tolist() == scores[best].tolist()
        assert result.clusters.tolist() == owner[best].tolist()

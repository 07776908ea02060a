"""Probing returns the nearest centroids in the order of a stable sort of all scores."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from carpool.disk.centroids import probe


@given(
    seed=st.integers(0, 2**32 - 1),
    nlist=st.integers(1, 40),
    queries=st.integers(0, 6),
    nprobe=st.integers(1, 45),
    levels=st.integers(1, 6),
)
def test_probing_is_a_stable_sort_of_all_scores_also_among_ties(
    seed: int, nlist: int, queries: int, nprobe: int, levels: int
) -> None:
    """Small integers as coordinates: many scores are equal, and all of them exact."""
    chooser = np.random.default_rng(seed)
    centroids = chooser.integers(-levels, levels, (nlist, 3)).astype(np.float32)
    vectors = chooser.integers(-levels, levels, (queries, 3)).astype(np.float32)
    found = probe(centroids, vectors, nprobe)
    assert found.shape == (queries, min(nprobe, nlist))
    assert found.dtype == np.int32
    for row, vector in zip(found.tolist(), vectors, strict=True):
        scores = (centroids @ vector).tolist()
        assert row == sorted(range(nlist), key=lambda cluster: (-scores[cluster], cluster))[:nprobe]

"""Centroids: trained on a sample that fits memory, made more even, the same bytes every time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.errors import ConfigError
from indexer.clustering import assign_rows, balance_centroids, train_centroids
from indexer.kmeans import kmeans, nearest
from indexer.plan.balance import Balance, plan_balance, unevenness
from indexer.plan.state import ClusteringIdentity
from indexer.progress import SilentProgress
from indexer.vectors import Vectors, open_precomputed

SETTINGS = ClusteringIdentity(nlist=20, seed=3, train_bytes_max=1 << 30)


def crowded(row_count: int = 4000, dimension: int = 12) -> np.ndarray:
    """Normalised rows, three quarters of them round one point: k-means leaves clusters far too
    large and far too small.
    """
    random = np.random.default_rng(5)
    rows = random.standard_normal((row_count, dimension)).astype(np.float32)
    rows[: row_count * 3 // 4] = rows[0] + rows[: row_count * 3 // 4] * 0.1
    random.shuffle(rows)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def counts_of(rows: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    return np.bincount(nearest(rows, centroids), minlength=len(centroids))


def vectors_of(folder: Path, rows: np.ndarray) -> Vectors:
    np.save(folder / "v.npy", rows)
    return open_precomputed(folder / "v.npy", len(rows))


def trained(vectors: Vectors, **changes: int) -> np.ndarray:
    settings = msgspec.structs.replace(SETTINGS, **changes)
    return train_centroids(vectors, 20, settings, SilentProgress())


def test_clusters_come_within_the_factors_and_are_as_many_as_asked_for() -> None:
    rows = crowded()
    # Every second start in one place: what a poor k-means leaves.
    plain = kmeans(rows, 20, iterations=1, seed=1)
    before = counts_of(rows, plain)
    assert before.max() > 2.5 * 200
    notes: list[str] = []
    even = balance_centroids(rows, plain, 3, notes.append)
    after = counts_of(rows, even)
    assert even.shape == plain.shape
    assert after.max() <= 2.5 * 200 < before.max()
    assert after.min() >= 0.25 * 200
    assert np.allclose(np.linalg.norm(even, axis=1), 1, atol=1e-5)
    assert notes
    assert np.array_equal(even, balance_centroids(rows, plain, 3, notes.append))


def test_rows_that_are_all_alike_cannot_be_split_and_are_left() -> None:
    rows = np.tile(crowded(1), (500, 1))
    plain = np.concatenate([rows[:1], crowded(4)[1:]])
    assert balance_centroids(rows, plain, 3, lambda _: None) is plain


def test_a_sample_that_memory_bounds_trains_centroids_nearly_as_good(tmp_path: Path) -> None:
    rows = crowded()
    vectors = vectors_of(tmp_path, rows)
    whole, small = trained(vectors), trained(vectors, train_bytes_max=800 * 12 * 4)
    assert not np.array_equal(whole, small)
    near = [(rows @ centroids.T).max(axis=1).mean() for centroids in (whole, small)]
    assert near[1] > near[0] - 0.02
    with pytest.raises(ConfigError, match=r"indexer\.memory_bytes is 479: .* give at least 960"):
        trained(vectors, train_bytes_max=479)


def test_every_row_is_assigned_to_its_nearest_centroid_and_the_digest_is_of_the_vectors(
    tmp_path: Path,
) -> None:
    rows = crowded(20_000)
    centroids = crowded(50)
    went_by: list[int] = []
    found = assign_rows(vectors_of(tmp_path, rows), centroids, went_by.append)
    scores = rows @ centroids.T
    assert found.clusters.dtype == np.int32
    assert (scores[np.arange(len(rows)), found.clusters] >= scores.max(axis=1) - 1e-6).all()
    assert sum(went_by) == len(rows)
    again = assign_rows(vectors_of(tmp_path, rows), centroids, went_by.append)
    assert again.vectors_digest == found.vectors_digest
    rows[19_999, 3] = np.nextafter(rows[19_999, 3], np.float32(2))
    assert (
        assign_rows(vectors_of(tmp_path, rows), centroids, went_by.append).vectors_digest
        != found.vectors_digest
    )


def test_faiss_multiplies_with_kernels_as_good_as_numpys_and_the_environment_stays() -> None:
    code = """
import os, indexer.kmeans, threadpoolctl
assert "OPENBLAS_CORETYPE" not in os.environ
print(*{found.get("architecture") for found in threadpoolctl.threadpool_info()})
"""
    environment = {key: each for key, each in os.environ.items() if key != "OPENBLAS_CORETYPE"}
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout.split()
    assert "Prescott" not in found or not {"Haswell", "SkylakeX", "Zen"} & {*found}


# ---- which clusters are split and which are dissolved: pairs, so that there are as many afterwards


def test_the_far_too_large_one_is_split_and_the_smallest_gives_its_place() -> None:
    # mean 20: 60 is more than 50; halves of 30 are fine, and 8 is the smallest
    assert plan_balance([60, 8, 10, 12, 10]) == Balance((1,), ((0, 2),))


def test_a_far_too_small_one_is_dissolved_although_none_is_too_large() -> None:
    # mean 20: 4 is less than 5
    assert plan_balance([30, 4, 24, 22, 20]) == Balance((1,), ((0, 2),))


def test_a_very_large_one_takes_as_many_places_as_it_needs() -> None:
    # mean 125.5: 900 in 3 pieces of 300 are within 313
    assert plan_balance([900, *[40] * 8, 35]) == Balance((9, 1), ((0, 3),))


@pytest.mark.parametrize(
    "counts", [[5], [20, 20, 20], [49, 6, 15, 10], [0, 0, 0], [1, 1, 0, 0], [2, 0, 0, 0]]
)
def test_what_is_even_or_cannot_be_better_is_left(counts: list[int]) -> None:
    assert plan_balance(counts) == Balance((), ())


many_counts = st.lists(st.one_of(st.integers(0, 30), st.integers(0, 5000)), min_size=1, max_size=60)


@given(counts=many_counts)
def test_places_given_are_places_taken_and_no_cluster_does_both(counts: list[int]) -> None:
    balance = plan_balance(counts)
    assert sum(pieces - 1 for _, pieces in balance.splits) == len(balance.dissolved)
    split = [cluster for cluster, _ in balance.splits]
    assert len({*split, *balance.dissolved}) == len(split) + len(balance.dissolved)
    for cluster, pieces in balance.splits:
        # Each piece has rows, and is worth more than what was given up first.
        assert counts[cluster] > pieces
        assert counts[cluster] / pieces > counts[balance.dissolved[0]]


@given(counts=many_counts)
def test_if_splits_came_out_even_the_largest_would_never_be_larger_and_the_smallest_never_smaller(
    counts: list[int],
) -> None:
    balance = plan_balance(counts)
    pieces = dict(balance.splits)
    after = [
        counts[cluster] / pieces.get(cluster, 1)
        for cluster in range(len(counts))
        for _ in range(pieces.get(cluster, 1))
        if cluster not in balance.dissolved
    ]
    assert len(after) == len(counts)
    assert max(after) <= max(counts)
    assert min(after) >= min(counts)
    if balance.splits:
        assert unevenness(counts) > 0

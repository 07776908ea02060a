"""The oracles of a closed loop, against every fixed set that there is."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench.data.oracles import oracle_static, oracle_window, window_counts

probe_lists = st.lists(
    st.lists(st.integers(0, 5), min_size=2, max_size=2, unique=True), min_size=1, max_size=12
)
sizes = st.lists(st.integers(1, 50), min_size=6, max_size=6)


@given(probe_lists, st.integers(1, 5))
def test_a_cluster_is_counted_once_a_window(probes: list[list[int]], window: int) -> None:
    dumb = [0] * 6
    for start in range(0, len(probes), window):
        for cluster in {cluster for query in probes[start : start + window] for cluster in query}:
            dumb[cluster] += 1
    assert window_counts(np.array(probes, dtype=np.int32), window, 6).tolist() == dumb


@given(probe_lists, sizes, st.integers(0, 320), st.integers(1, 5))
def test_no_fixed_set_of_clusters_reads_less_than_the_static_oracle(
    probes: list[list[int]], sizes: list[int], budget: int, window: int
) -> None:
    counts = window_counts(np.array(probes, dtype=np.int32), window, 6)
    size = np.array(sizes, dtype=np.int64)
    found = oracle_static(counts, size, budget)
    sets = (kept for count in range(7) for kept in combinations(range(6), count))
    dumb = min(
        sum(sizes[c] * (min(int(counts[c]), 1) if c in kept else int(counts[c])) for c in range(6))
        for kept in sets
        if sum(sizes[c] for c in kept) <= budget
    )
    assert found.bytes_read <= dumb
    assert found.kept_bytes <= budget
    assert found.bytes_read <= oracle_window(counts, size).bytes_read
    if budget >= sum(sizes):  # all fits: each wanted cluster is read once
        assert (
            found.bytes_read
            == dumb
            == sum(s for s, count in zip(sizes, counts, strict=True) if count)
        )


@given(
    st.lists(
        st.lists(st.integers(0, 2), min_size=2, max_size=2, unique=True), min_size=1, max_size=12
    ),
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=3, max_size=3),
    st.integers(0, 50),
    st.integers(1, 5),
)
def test_no_fixed_set_of_slices_reads_less_than_the_static_oracle(
    probes: list[list[int]], slices: list[list[int]], budget: int, window: int
) -> None:
    counts = window_counts(np.array(probes, dtype=np.int32), window, 3)
    found = oracle_static(
        counts, np.array([sum(parts) for parts in slices], dtype=np.int64), budget
    )
    parts = [(cluster, size) for cluster, sizes in enumerate(slices) for size in sizes]
    sets = (
        set(kept)
        for count in range(len(parts) + 1)
        for kept in combinations(range(len(parts)), count)
    )
    affordable = [kept for kept in sets if sum(parts[number][1] for number in kept) <= budget]
    assert all(
        found.bytes_read <= _read_with_fixed_set(probes, window, parts, kept) for kept in affordable
    )


def _read_with_fixed_set(
    probes: list[list[int]], window: int, parts: list[tuple[int, int]], kept: set[int]
) -> int:
    """Searches window by window, from an empty memory: reads what is wanted and not there, then
    forgets what is not kept.
    """
    memory: set[int] = set()
    read = 0
    for start in range(0, len(probes), window):
        clusters = {cluster for query in probes[start : start + window] for cluster in query}
        wanted = {number for number, (cluster, _) in enumerate(parts) if cluster in clusters}
        read += sum(parts[number][1] for number in wanted - memory)
        memory = (memory | wanted) & kept
    return read


def test_the_oracles_of_a_small_trace() -> None:
    # Windows of 2: {0, 1, 2}, {0, 1}, {0, 3}. Cluster 0 is wanted three times, 1 twice, 2 and 3
    # once.
    probes = np.array([[0, 1], [0, 2], [0, 1], [1, 0], [0, 3], [3, 0]], dtype=np.int32)
    counts, size = window_counts(probes, 2, 4), np.array([10, 20, 5, 1], dtype=np.int64)
    assert counts.tolist() == [3, 2, 1, 1]
    assert oracle_window(counts, size).bytes_read == 30 + 40 + 5 + 1
    assert oracle_static(counts, size, 10).bytes_read == 76 - 20
    assert oracle_static(counts, size, 20).bytes_read == 76 - 20 - 10  # half of cluster 1 fits

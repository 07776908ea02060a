"""The static oracle, against every fixed set of slices that there is."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench.papers.cagr.figures import static_oracle_bytes


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
    windows = [probes[start : start + window] for start in range(0, len(probes), window)]
    sizes = np.array([sum(parts) for parts in slices], dtype=np.int64)
    found = static_oracle_bytes(map(np.array, windows), sizes, budget)
    parts = [(cluster, size) for cluster, sizes in enumerate(slices) for size in sizes]
    sets = (
        set(kept)
        for count in range(len(parts) + 1)
        for kept in combinations(range(len(parts)), count)
    )
    read = [
        _read_with_fixed_set(windows, parts, kept)
        for kept in sets
        if sum(parts[number][1] for number in kept) <= budget
    ]
    assert found <= min(read)
    if budget >= sizes.sum():  # all fits: each wanted cluster is read once
        assert found == min(read)


def _read_with_fixed_set(
    windows: list[list[list[int]]], parts: list[tuple[int, int]], kept: set[int]
) -> int:
    """Searches window by window, from an empty memory: reads what is wanted and not there, then
    forgets what is not kept.
    """
    memory: set[int] = set()
    read = 0
    for window in windows:
        clusters = {cluster for query in window for cluster in query}
        wanted = {number for number, (cluster, _) in enumerate(parts) if cluster in clusters}
        read += sum(parts[number][1] for number in wanted - memory)
        memory = (memory | wanted) & kept
    return read


def test_the_oracle_of_a_small_trace() -> None:
    # Cluster 0 is wanted three times, 1 twice, 2 and 3 once.
    windows = [np.array(each) for each in ([[0, 1], [0, 2]], [[0, 1], [1, 0]], [[0, 3], [3, 0]])]
    sizes = np.array([10, 20, 5, 1], dtype=np.int64)
    assert static_oracle_bytes(windows, sizes, 0) == 30 + 40 + 5 + 1
    assert static_oracle_bytes(windows, sizes, 10) == 76 - 20
    assert static_oracle_bytes(windows, sizes, 20) == 76 - 20 - 10  # half of cluster 1 fits

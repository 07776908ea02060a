"""The pure parts: ratios, oracles, the search for a rate, exactness."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.spread import Range, over_runs, paired_ratio
from bench.retrieval.cells import agrees
from bench.retrieval.exactness import MARGIN, check_exact
from bench.retrieval.oracles import oracle_static, oracle_window, window_counts
from bench.retrieval.rates import RateSearch
from bench.retrieval.statistics import differ_by_share

positive = st.floats(min_value=0.01, max_value=1e6)
by_seed = st.dictionaries(st.integers(0, 9), positive, max_size=6)


@given(by_seed, by_seed)
def test_ratios_are_of_seeds_that_both_have(one: dict[int, float], other: dict[int, float]) -> None:
    dumb = sorted(one[seed] / other[seed] for seed in one if seed in other)
    found = paired_ratio(one, other)
    if not dumb:
        assert found is None
        return
    assert found is not None
    middle = (
        dumb[len(dumb) // 2]
        if len(dumb) % 2
        else (dumb[len(dumb) // 2 - 1] + dumb[len(dumb) // 2]) / 2
    )
    assert (found.median, found.min, found.max, found.count) == (
        middle,
        dumb[0],
        dumb[-1],
        len(dumb),
    )


def test_a_ratio_to_nothing_is_left_out() -> None:
    assert paired_ratio({0: 3.0, 1: 4.0}, {0: 0.0, 1: 2.0}) == Range(
        median=2.0, min=2.0, max=2.0, count=1
    )
    assert over_runs([]) is None


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_two_counts_differ_the_same_way_round(one: int, other: int) -> None:
    assert differ_by_share(one, other) == differ_by_share(other, one) <= 1
    assert differ_by_share(one, one) == 0


def test_bytes_agree_within_two_per_cent_or_four_mebibytes() -> None:
    assert agrees(1_000_000_000, 1_020_000_000)
    assert not agrees(1_000_000_000, 1_030_000_000)
    assert agrees(0, 4 << 20)
    assert not agrees(0, (4 << 20) + 1)


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


@given(st.floats(0.6, 5_000), st.floats(0.5, 5_000))
def test_the_rate_is_found_between_one_that_held_and_one_that_did_not(
    true_rate: float, guess: float
) -> None:
    search = RateSearch(guess, tries_max=60, ratio_min=1.05)
    while (rate := search.next_rate()) is not None:
        search.judge(rate <= true_rate)
    found = search.found()
    assert found.failed_per_s is not None
    assert found.held_per_s <= true_rate < found.failed_per_s
    assert found.failed_per_s / found.held_per_s < 1.05


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.floats(0.1, 1_000))
def test_whatever_is_said_the_search_ends_and_holds_less_than_failed(
    verdicts: list[bool], guess: float
) -> None:
    search = RateSearch(guess, tries_max=7)
    tries = 0
    for verdict in verdicts * 7:
        if search.next_rate() is None:
            break
        search.judge(verdict)
        tries += 1
    found = search.found()
    assert tries == found.tries <= 7
    assert found.failed_per_s is None or found.held_per_s <= found.failed_per_s


def test_a_contestant_that_holds_no_rate_is_below_the_lowest() -> None:
    search = RateSearch(4.0, rate_min_per_s=1.0)
    while search.next_rate() is not None:
        search.judge(False)
    assert search.found().held_per_s == 0
    assert search.found().failed_per_s == 1.0
    assert search.found().tries == 3


def _reference(count: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.arange(3 + MARGIN, dtype=np.int64)[None].repeat(count, 0)
    scores = np.linspace(0.9, 0.5, 3 + MARGIN, dtype=np.float32)[None].repeat(count, 0)
    return ids, scores


def test_ids_are_the_same_tied_or_different() -> None:
    ids, scores = _reference(5)
    scores[1, 3] = scores[1, 2] - 5e-6  # the fourth ties with the third
    found = np.array([[0, 1, 2], [0, 1, 3], [0, 1, 3], [0, 1, 99], [0, 1, -1]], dtype=np.int64)
    agreed = check_exact(found, ids, scores, [0, 1, 2, 3, 4])
    assert (agreed.same, agreed.tied, agreed.different) == (1, 1, 3)
    assert "row 99 is not among the first 13" in agreed.examples[1]
    assert "2 hits instead of 3" in agreed.examples[2]
    assert check_exact(found, ids, scores, [0]).holds


def test_an_id_that_is_there_twice_is_different() -> None:
    ids, scores = _reference(1)
    scores[:] = 0.5
    assert check_exact(np.array([[0, 0, 1]], dtype=np.int64), ids, scores, [0]).different == 1


def test_a_guess_must_be_a_rate() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        RateSearch(0.0)

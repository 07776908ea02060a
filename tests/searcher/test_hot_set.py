"""The hot set: its hit rates, the times of searches, and the choice, over any queries and times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.errors import RetryableError
from searcher.plan.hot_set import choose_hot_set, judge_hot_set, nested_hot_sets
from searcher.plan.search_times import SearchTimes, TimeSample, batch_time_us, fit_search_times

TIMES = SearchTimes(fixed_us=100, other_us=20, scan_us=2000, threads=4)


def queries_of(seed: int, count: int, nlist: int, nprobe: int) -> list[np.ndarray]:
    """Queries of subjects: each prefers some of the clusters, as real questions do."""
    random = np.random.default_rng(seed)
    subjects = random.dirichlet(np.full(nlist, 0.05), size=8)
    return [
        random.choice(
            nlist, nprobe, replace=False, p=0.9 * subjects[random.integers(8)] + 0.1 / nlist
        )
        for _ in range(count)
    ]


def hit_rates(probes: list[np.ndarray], clusters: np.ndarray) -> np.ndarray:
    return np.array([np.isin(one, clusters).mean() for one in probes])


# ---- the times


@given(st.floats(0, 5000), st.floats(0, 200), st.floats(50, 20_000), st.sampled_from([1, 2, 4, 16]))
def test_a_line_is_found_again(
    fixed_us: float, other_us: float, scan_us: float, threads: int
) -> None:
    samples = [
        TimeSample(batch, share, fixed_us + other_us * batch + share * scan_us * batch / threads)
        for batch in (1, 2, 4, 8, 16, 32, 64)
        for share in (0.25, 0.5, 1.0)
    ]
    found = fit_search_times(samples, threads)
    for batch, share, took_us in samples:
        scans_us = share * found.scan_us * batch / threads
        expected = found.fixed_us + found.other_us * batch + scans_us
        assert expected == pytest.approx(took_us, rel=1e-3)
    assert found.scan_us == pytest.approx(scan_us, rel=0.01)
    assert found.error < 1e-3


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [TimeSample(1, 1.0, 100), TimeSample(1, 0.5, 50)],  # one size
        [TimeSample(1, 1.0, 100), TimeSample(8, 1.0, 800)],  # one share
        [TimeSample(1, 1.0, 0), TimeSample(8, 0.5, 800)],
        [TimeSample(batch, share, 100 / share) for batch in (1, 8) for share in (0.1, 0.5, 1)],
        [TimeSample(8**i, 0.5 + j / 2, 10 ** (5 * ((i + j) % 2))) for i in (0, 1) for j in (0, 1)],
    ],
)
def test_times_that_do_not_fit_are_refused(samples: list[TimeSample]) -> None:
    with pytest.raises(RetryableError):
        fit_search_times(samples, 2)


def test_a_batch_takes_the_scans_that_its_mean_question_needs() -> None:
    times = SearchTimes(fixed_us=100, other_us=10, scan_us=1000, threads=4)
    assert batch_time_us(times, 0.75, 8) == pytest.approx(100 + 80 + 500)


# ---- the choice


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[np.ndarray], np.ndarray]:
    nlist = draw(st.integers(1, 12))
    one = st.sets(st.integers(0, nlist - 1), min_size=0, max_size=5)
    probes = [np.array(sorted(query), np.int64) for query in draw(st.lists(one, max_size=12))]
    sizes = draw(st.lists(st.integers(0, 9), min_size=nlist, max_size=nlist))
    return probes, np.array(sizes, np.int64)


@given(
    worlds(),
    st.sampled_from([0, 500, 2500, 3500, 4400, 10**6]),
    st.sampled_from([0, 300, 900, 1500, 10**6]),
)
def test_the_choice_is_a_prefix_that_meets_the_targets_and_one_cluster_less_does_not(
    world: tuple[list[np.ndarray], np.ndarray], target_us: int, rate: int
) -> None:
    probes, sizes = world
    sets = nested_hot_sets(probes, sizes)
    counts = np.bincount(np.concatenate([*probes, []]).astype(int), minlength=len(sizes))
    order = sorted(range(len(sizes)), key=lambda cluster: (-counts[cluster], cluster))
    assert sets.clusters.tolist() == order
    choice = choose_hot_set(sets, TIMES, target_us=target_us, queries_per_s=rate)
    assert choice.size_bytes == sum(sizes[cluster] for cluster in order[: choice.clusters])
    if choice.meets:
        assert not target_us or 2 * choice.search_us <= target_us + 1e-6
        assert not rate or choice.batch * 1e6 / choice.search_us >= rate - 1e-6
    else:
        assert choice.clusters == len(sizes)
    if choice.clusters:
        fewer = choice.clusters - 1
        judged = judge_hot_set(sets, fewer, TIMES, target_us=target_us, queries_per_s=rate)
        assert not judged.meets


def test_few_queries_do_not_promise_hits_that_others_do_not_have() -> None:
    count, numbers = 30, (20, 40, 80)
    over, naive, cautious = [], [], []
    for seed in range(8):
        asked = queries_of(seed, 200 + count, 400, 12)
        profile, others = asked[:count], asked[count:]
        sets = nested_hot_sets(profile, np.ones(400, np.int64))
        for number in numbers:
            true = hit_rates(others, sets.clusters[:number]).mean()
            over.append(sets.means[number] - true)
            naive.append(hit_rates(profile, sets.clusters[:number]).mean() - true)
            cautious.append(sets.cautious_mean(number) < true)
    assert abs(np.mean(over)) < 0.02 and np.mean(naive) > 0.04
    assert np.mean(cautious) > 0.7


def test_moments_are_those_of_the_hit_rates_of_many_queries() -> None:
    probes = queries_of(6, 3000, 60, 8)
    probes[::3] = [one[:5] for one in probes[::3]]  # queries of fewer clusters
    sets = nested_hot_sets(probes, np.ones(60, np.int64))
    for number in (0, 1, 5, 20, 59, 60):
        rates = hit_rates(probes, sets.clusters[:number])
        assert sets.means[number] == pytest.approx(rates.mean(), abs=0.002)
        assert sets.variances[number] == pytest.approx(rates.var(), abs=0.003)
    assert sets.nprobe == 7 and sets.queries == 3000
    assert all(sets.cautious_mean(one) < sets.means[one] for one in range(1, 60))


def test_clusters_that_the_index_does_not_have_are_refused() -> None:
    for cluster in (-1, 3):
        with pytest.raises(ValueError, match="does not have"):
            nested_hot_sets([np.array([cluster])], np.ones(3, np.int64))

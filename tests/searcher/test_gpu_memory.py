"""One GPU for the KV cache and the shard: no other split gives more questions a second."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.errors import ConfigError
from searcher.plan.gpu_memory import (
    TIE_SHARE,
    UTILIZATION_STEPS,
    GenerationModel,
    GpuMemory,
    GpuSplit,
    MeasuredRates,
    choose_gpu_split,
    retrieval_points,
    split_for_shard,
    split_for_utilization,
)
from searcher.plan.hot_set import nested_hot_sets
from searcher.plan.search_times import SearchTimes

GIB = 1 << 30
CARD = GpuMemory(
    total_bytes=80 * GIB, llm_fixed_bytes=18 * GIB, kept_bytes=1 * GIB, kv_bytes_min=1 * GIB
)


@st.composite
def rates(draw: st.DrawFn, size_bytes_max: int) -> MeasuredRates:
    sizes = draw(st.lists(st.integers(0, size_bytes_max), min_size=1, max_size=6, unique=True))
    per_s = draw(st.lists(st.floats(0, 1e4), min_size=len(sizes), max_size=len(sizes)))
    return MeasuredRates(list(zip(sorted(sizes), per_s, strict=True)))


@st.composite
def cards(draw: st.DrawFn) -> GpuMemory:
    total_bytes = draw(st.integers(4 * GIB, 200 * GIB))
    fixed_bytes = draw(st.integers(1, total_bytes // 2))
    kept_bytes = draw(st.integers(0, total_bytes // 8))
    kv_bytes_min = draw(st.integers(1, total_bytes // 4))
    return GpuMemory(
        total_bytes=total_bytes,
        llm_fixed_bytes=fixed_bytes,
        kept_bytes=kept_bytes,
        kv_bytes_min=kv_bytes_min,
    )


def check_fits(split: GpuSplit, memory: GpuMemory) -> None:
    """Nothing is promised twice, as vLLM counts: it rounds its share up."""
    llm_bytes = math.ceil(memory.total_bytes * split.utilization)
    assert llm_bytes == memory.llm_fixed_bytes + split.kv_bytes
    assert llm_bytes + split.shard_bytes + memory.kept_bytes <= memory.total_bytes
    assert split.kv_bytes >= memory.kv_bytes_min
    assert split.shard_bytes >= 0


@given(st.data(), cards(), st.floats(1, 1e5))
def test_no_other_split_gives_more_and_of_equal_ones_the_shard_is_the_smallest(
    data: st.DataObject, memory: GpuMemory, wanted_per_s: float
) -> None:
    generation = data.draw(rates(memory.total_bytes))
    retrieval = data.draw(rates(memory.total_bytes))
    most = data.draw(st.integers(0, memory.total_bytes))
    split = choose_gpu_split(
        memory, generation, retrieval, shard_bytes_max=most, wanted_per_s=wanted_per_s
    )
    check_fits(split, memory)
    assert split.shard_bytes <= most
    chosen = min(generation(split.kv_bytes), retrieval(split.shard_bytes), wanted_per_s)
    for step in range(1, UTILIZATION_STEPS + 1):
        llm_bytes = math.ceil(memory.total_bytes * step / UTILIZATION_STEPS)
        kv_bytes = llm_bytes - memory.llm_fixed_bytes
        left_bytes = memory.total_bytes - memory.kept_bytes - llm_bytes
        if kv_bytes < memory.kv_bytes_min or left_bytes < memory.total_bytes / UTILIZATION_STEPS:
            continue  # vLLM would not start, or there is no room for a shard
        other = min(generation(kv_bytes), retrieval(min(left_bytes, most)), wanted_per_s)
        assert chosen >= other * (1 - TIE_SHARE)
        if kv_bytes > split.kv_bytes:
            assert other <= chosen / (1 - TIE_SHARE)


def test_where_search_is_fast_enough_the_shard_gets_nothing() -> None:
    generation = MeasuredRates([(10 * GIB, 20.0), (60 * GIB, 50.0)])
    split = choose_gpu_split(CARD, generation, MeasuredRates([(0, 900.0)]), shard_bytes_max=GIB)
    assert (split.shard_bytes, split.limit) == (0, "llm")
    assert split.utilization == pytest.approx(79 / 80, abs=1e-3)


def test_a_shard_of_two_steps_is_chosen_where_it_is_enough() -> None:
    # A step is 0.08 GiB.
    retrieval = MeasuredRates([(0, 10.0), (GIB // 5, 20.0), (GIB, 20.5)])
    split = choose_gpu_split(CARD, MeasuredRates([(0, 20.0)]), retrieval, shard_bytes_max=GIB)
    assert 0.19 * GIB <= split.shard_bytes <= 0.28 * GIB


def test_both_sides_are_equal_where_both_need_the_memory() -> None:
    generation = MeasuredRates([(60 * GIB, 60.0)])  # one a GiB
    retrieval = MeasuredRates([(0, 10.0), (60 * GIB, 130.0)])  # 10, and two more a GiB
    split = choose_gpu_split(CARD, generation, retrieval, shard_bytes_max=60 * GIB)
    # kv = 10 + 2 * (61 - kv): 44 GiB
    assert split.kv_bytes == pytest.approx(44 * GIB, rel=0.01)
    assert split.shard_bytes == pytest.approx(17 * GIB, rel=0.03)
    assert split.answers_per_s == pytest.approx(split.searches_per_s, rel=0.03)


def test_where_the_whole_index_is_too_slow_the_llm_has_all_other_memory() -> None:
    generation = MeasuredRates([(60 * GIB, 600.0)])
    retrieval = MeasuredRates([(0, 1.0), (5 * GIB, 30.0)])
    split = choose_gpu_split(CARD, generation, retrieval, shard_bytes_max=5 * GIB)
    assert split.limit == "search"
    assert split.shard_bytes == pytest.approx(5 * GIB, rel=0.02)
    assert split.kv_bytes == pytest.approx(56 * GIB, rel=0.01)


def test_no_more_is_built_than_is_asked_for() -> None:
    generation = MeasuredRates([(60 * GIB, 60.0)])
    retrieval = MeasuredRates([(0, 10.0), (60 * GIB, 130.0)])
    split = choose_gpu_split(
        CARD, generation, retrieval, shard_bytes_max=60 * GIB, wanted_per_s=20.0
    )
    assert split.limit == "questions"
    assert split.shard_bytes == pytest.approx(5 * GIB, rel=0.05)


@pytest.mark.parametrize("fixed_gib", [78.5, 79.5, 90])
def test_too_little_memory_is_an_error_that_names_what_takes_it(fixed_gib: float) -> None:
    memory = GpuMemory(
        total_bytes=80 * GIB,
        llm_fixed_bytes=int(fixed_gib * GIB),
        kept_bytes=GIB,
        kv_bytes_min=GIB,
    )
    with pytest.raises(ConfigError, match=r"80\.00 GiB is too small"):
        choose_gpu_split(
            memory, MeasuredRates([(0, 1)]), MeasuredRates([(0, 1)]), shard_bytes_max=1
        )


@given(st.integers(1, 100), st.integers(1, 4096), st.integers(0, 64))
def test_the_model_counts_whole_sequences_and_never_falls(
    sequences_max: int, prompt_tokens: int, gib: int
) -> None:
    model = GenerationModel(
        kv_bytes_a_token=131_072,
        prompt_tokens=prompt_tokens,
        answer_tokens=64,
        sequences_max=sequences_max,
        step_us=2_000,
        read_us=18_000,
        sequence_read_us=200,
        token_us=50,
    )
    sequence_bytes = (prompt_tokens + 64) * 131_072
    assert model(sequence_bytes - 1) == 0
    # One sequence alone: 64 steps, each with a part of its prompt.
    compute_us = (prompt_tokens + 64) / 64 * 50
    alone_s = 64 * (2_000 + max(18_200, compute_us)) / 1e6
    assert model(sequence_bytes) == pytest.approx(1 / alone_s)
    assert model(gib * GIB) <= model((gib + 1) * GIB)
    assert model(sequences_max * sequence_bytes) == model(sequences_max * sequence_bytes * 9)
    assert model(10**15) < 1e6 / ((prompt_tokens + 64) * 50)


def test_measured_points_are_met_and_lines_lie_between_them() -> None:
    measured = MeasuredRates([(100, 5.0), (200, 4.0), (300, 9.0)])
    found = [measured(at) for at in (0, 50, 100, 200, 250, 300, 10**12)]
    assert found == [0.0, 2.5, 5.0, 5.0, 7.0, 9.0, 9.0]  # 4 after 5 is noise
    assert all(measured(a) <= measured(b) for a, b in pairwise(range(400)))


@pytest.mark.parametrize(
    "points",
    [[], [(5, 1.0), (5, 2.0)], [(9, 1.0), (5, 2.0)], [(-1, 1.0)], [(1, math.nan)], [(1, -1)]],
)
def test_what_is_no_curve_is_refused(points: list[tuple[int, float]]) -> None:
    with pytest.raises(ConfigError):
        MeasuredRates(points)


@given(cards(), st.integers(0, 100 * GIB))
def test_a_shard_that_was_given_is_kept_or_refused(memory: GpuMemory, shard_bytes: int) -> None:
    try:
        split = split_for_shard(memory, shard_bytes)
    except ConfigError:
        step_bytes = memory.total_bytes / UTILIZATION_STEPS
        assert memory.shared_bytes - memory.kv_bytes_min - shard_bytes < 2 * step_bytes
        return
    check_fits(split, memory)
    assert split.shard_bytes == shard_bytes
    unused = memory.shared_bytes - split.kv_bytes - shard_bytes
    assert unused <= memory.total_bytes / UTILIZATION_STEPS


def test_a_share_that_was_given_leaves_the_shard_the_rest() -> None:
    split = split_for_utilization(CARD, 0.9, shard_bytes_max=60 * GIB)
    assert (split.kv_bytes, split.shard_bytes, split.utilization) == (54 * GIB, 7 * GIB, 0.9)
    assert split_for_utilization(CARD, 0.9, shard_bytes_max=GIB).shard_bytes == GIB
    with pytest.raises(ConfigError, match="leaves nothing"):
        split_for_utilization(CARD, 0.99, shard_bytes_max=GIB)


def test_search_is_faster_with_a_shard_until_the_gpu_is_the_slower_side() -> None:
    probes = [np.array([0, 1, 2, 3]), np.array([0, 1, 4, 5]), np.array([0, 1, 2, 6])] * 30
    sets = nested_hot_sets(probes, np.array([100, 100, 100, 100, 100, 100, 100, 0, 0]))
    times = SearchTimes(fixed_us=0, other_us=10, scan_us=1_000, threads=4)
    points = retrieval_points(sets, times)
    assert [size_bytes for size_bytes, _ in points] == [100 * number for number in range(8)]
    per_s = [rate for _, rate in points]
    assert per_s[0] == pytest.approx(1e6 / (10 + 1_000 / 4), rel=0.01)
    assert per_s[-1] == pytest.approx(1e6 / 10)
    assert per_s == sorted(per_s)
    # Four clusters of 100 bytes are scanned on the GPU: 20,000 queries a second.
    assert retrieval_points(sets, times, scan_bytes_per_s=8e6)[-1][1] == pytest.approx(20_000)
    # A batch of 8 takes 80 us with all in the shard, and one query without a shard takes 1,010 us.
    slow, *_, fast = [rate for _, rate in retrieval_points(sets, times, target_us=160)]
    assert (slow, fast) == (0, pytest.approx(1e6 / 10))

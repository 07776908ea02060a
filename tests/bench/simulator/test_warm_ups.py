"""Warm-ups on virtual time, counted by hand."""

from __future__ import annotations

import pytest

from bench.papers.aquapipe.speculation import oracle_of
from bench.papers.ragcache.speculative_pipelining import RagCache
from bench.simulator.warm_ups import Found, WarmUpFigures, WarmUpLoad, WarmUpSimulation
from generator.plan.warm_ups import NoSpeculation, SpeculationPolicy

LOAD = WarmUpLoad(
    search_us=1_000,
    answer_tokens=2,
    tail_tokens=5,
    step_us=10,
    prefill_us=1,
    decode_us=0,
    block_tokens=10,
)


def growing(*drafts: str) -> tuple[Found, ...]:
    """A search of clusters of equal size that finds these passages one after the other."""
    return tuple(
        Found(passages=tuple(each), scores=(1.0,) * len(each), at=done / len(drafts))
        for done, each in enumerate(drafts, 1)
    )


def figures(policy: SpeculationPolicy, *drafts: str) -> WarmUpFigures:
    """Of one question; a passage has 100 tokens, so its prompt has 205 with two passages."""
    return WarmUpSimulation([growing(*drafts)], [100] * 5, policy, LOAD).run()


def test_without_warm_ups_the_whole_prompt_is_computed_after_the_search() -> None:
    found = figures(NoSpeculation(), "01", "02")
    assert (found.saved, found.in_vain, found.ttft_ms) == (0, 0, 0.215)


def test_the_oracle_warms_only_what_is_final() -> None:
    found = figures(oracle_of({"0": ("0", "2")}), "01", "01", "01", "02")
    assert found.saved == pytest.approx(100 / 205)
    assert (found.in_vain, found.ttft_ms) == (0, 0.115)


def test_what_a_wrong_draft_computed_is_wasted_behind_the_right_passages() -> None:
    found = figures(RagCache(), "01", "02", "02", "02")
    assert found.saved == pytest.approx(200 / 205)
    assert found.in_vain == pytest.approx(100 / 205)
    assert found.ttft_ms == 0.015


def test_a_step_in_progress_cannot_be_cut() -> None:
    """The search ends after 1,000 us; the wrong warm-up begins at 950 us and takes 210 us."""
    found = figures(RagCache(), *["01"] * 18, "31", "02")
    assert found.ttft_ms == pytest.approx((950 + 210 - 1_000 + 10 + 105) / 1_000)


def test_a_question_finds_nothing_of_the_one_before() -> None:
    found = WarmUpSimulation([growing("01", "01")] * 2, [100] * 5, RagCache(), LOAD).run()
    assert found.saved == pytest.approx(200 / 205) and found.in_vain == 0

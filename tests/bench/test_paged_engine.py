"""The model of vLLM's memory: nothing is lost, and less memory is never faster."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.generation.paged_engine import BLOCK_TOKENS, LlmStepCosts, PagedEngine, Sequence

COSTS = LlmStepCosts(
    overhead_us=1_000,
    weights_bytes=1_000_000,
    kv_bytes_a_token=100,
    flops_a_token=1e6,
    bytes_per_s=1e9,
    flops_per_s=1e10,
)
LENGTHS = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40)), min_size=1, max_size=30)


def run(lengths: list[tuple[int, int]], *, blocks: int, sequences_max: int = 8) -> PagedEngine:
    engine = PagedEngine(
        COSTS, kv_bytes=blocks * BLOCK_TOKENS * COSTS.kv_bytes_a_token, sequences_max=sequences_max
    )
    ended = 0
    for prompt, answer in lengths:
        engine.add(Sequence(prompt_tokens=prompt, answer_tokens=answer))
    while not engine.is_idle:
        took_us, now_ended = engine.step()
        assert took_us > COSTS.overhead_us
        ended += now_ended
        engine.check_integrity()
    assert ended == len(lengths)
    return engine


@given(LENGTHS, st.integers(22, 60))
def test_every_answer_is_written_whatever_fits(lengths: list[tuple[int, int]], blocks: int) -> None:
    run(lengths, blocks=blocks)


def test_sequences_that_all_fit_are_never_preempted_and_others_are() -> None:
    lengths = [(100, 60)] * 8  # 10 blocks each at the end, 7 at the beginning
    assert run(lengths, blocks=80).preemptions == 0
    assert run(lengths, blocks=56).preemptions > 0


def test_a_lone_answer_takes_a_step_a_token() -> None:
    engine = PagedEngine(COSTS, kv_bytes=10**6, sequences_max=8)
    engine.add(Sequence(prompt_tokens=50, answer_tokens=3))
    took_us = []
    while not engine.is_idle:
        took_us.append(engine.step()[0])
    # Weights are read in 1,000 us, a token of the KV cache in .1 us; a token is computed in 100 us.
    assert took_us == [1_000 + 5_000, 1_000 + 1_005.1, 1_000 + 1_005.2]

"""The model of vLLM's prefix cache, in traces whose hits are counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.papers.ragcache.orders import Arrival, CacheAware
from bench.simulator.prompt_cache import (
    BlockSimulator,
    CacheSize,
    computed_once,
    replay,
)
from generator.plan.cached_prefixes import CachedPrefixes
from generator.plan.kv_tree import KvTree, digests_of

BLOCK = 4


def simulator(blocks: int, *, concurrency: int = 1, output_tokens: int = 0) -> BlockSimulator:
    return BlockSimulator(
        CacheSize(
            blocks=blocks,
            block_tokens=BLOCK,
            concurrency=concurrency,
            output_tokens=output_tokens,
        )
    )


def cached_of(server: BlockSimulator, *prompts: list[int]) -> list[int]:
    found = []
    for prompt in prompts:
        found.append(server.start(prompt).cached)
        server.check_integrity()
    return found


A = [1] * 8 + [2, 3]
B = [1] * 4 + [5] * 6
C = [6] * 10


def test_full_blocks_of_the_common_beginning_are_cached() -> None:
    assert cached_of(simulator(20), A, A, B, C, B) == [0, 8, 4, 0, 8]


def test_one_token_at_least_is_computed() -> None:
    assert cached_of(simulator(20), [1] * 8, [1] * 8, [1] * 9) == [0, 4, 8]


def test_the_blocks_that_were_used_least_recently_are_evicted_the_end_of_a_prompt_first() -> None:
    # 6 blocks: A has two full ones and a part. C takes A's part and two that were never used; the
    # next prompt takes C's part, the last that was never used, and the second block of A.
    assert cached_of(simulator(6), A, C, [8] * 10, A) == [0, 0, 0, 4]


def test_requests_that_run_hold_their_blocks() -> None:
    alone, together = simulator(8), simulator(8, concurrency=2)
    prompts = [A, C, [8] * 10, [9] * 10, A]
    assert cached_of(alone, *prompts) == [0, 0, 0, 0, 4]
    assert cached_of(together, *prompts) == [0, 0, 0, 0, 0]


def test_an_answer_takes_blocks_too() -> None:
    assert cached_of(simulator(6), A, C, A) == [0, 0, 8]
    assert cached_of(simulator(6, output_tokens=10), A, C, A) == [0, 0, 4]


def test_a_prompt_larger_than_the_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="3 blocks does not fit 2"):
        simulator(2).start(A)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 9)), max_size=50))
@settings(max_examples=200, deadline=None)
def test_a_tree_fed_by_all_events_knows_what_is_cached(
    drawn: list[tuple[int, int, int]],
) -> None:
    server, tree = simulator(14, concurrency=2, output_tokens=2), KvTree()
    for seq, (first, second, length) in enumerate(drawn):
        # Lengths that are no multiple of a block: a block is never there twice.
        prompt = [first] * 5 + [second] * (4 * (length // 4) + 4)
        expected = tree.cached_tokens(digests_of(prompt[:-1], block_tokens=BLOCK))
        assert server.start(prompt).cached == expected
        server.check_integrity()
        tree.step(server.take_batch(seq))
        tree.check_integrity()


def prompt(question: int, *passages: int) -> tuple[int, ...]:
    """A block for the head, one for each passage, and two tokens."""
    body = [passage for passage in passages for _ in range(BLOCK)]
    return (*[0] * BLOCK, *body, 1_000 + question, 2_000)


PROMPTS = [prompt(*each) for each in ((0, 1, 2), (1, 3, 4), (2, 2, 1), (3, 5, 6), (4, 3, 2))]
PROMPTS.append(PROMPTS[0])
SIZE = CacheSize(blocks=9, block_tokens=BLOCK, concurrency=1, output_tokens=0)


@pytest.mark.parametrize("order", [Arrival, CacheAware, CachedPrefixes])
def test_no_order_surpasses_the_bound(order: type[CachedPrefixes]) -> None:
    bound = computed_once(PROMPTS, BLOCK)
    assert replay(PROMPTS, SIZE, order, backlog=6).cached_share <= bound.cached_share


def test_the_bound_computes_each_block_once() -> None:
    # The head, 1, 1-2, 3, 3-4, 2, 2-1, 5, 5-6, 3-2, and two tokens of each prompt.
    assert computed_once(PROMPTS, BLOCK).computed == 10 * BLOCK + 6 * 2


def test_with_memory_for_all_the_order_of_arrival_reaches_the_bound() -> None:
    large = CacheSize(blocks=1_000, block_tokens=BLOCK, concurrency=1, output_tokens=0)
    assert replay(PROMPTS, large, Arrival, backlog=1) == computed_once(PROMPTS, BLOCK)


def test_a_backlog_sends_together_what_begins_alike() -> None:
    twice = [prompt(n, 1 + n % 6, 9) for n in range(12)]  # each first passage comes back after six
    alone, together = (replay(twice, SIZE, CachedPrefixes, backlog=n) for n in (1, 12))
    assert alone.cached == 11 * BLOCK, "the head alone"
    assert together.cached == (11 + 6 * 2) * BLOCK, "and two blocks of every second prompt"

"""vLLM's scheduler without its model: what is cached, on the GPU and on the host."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.papers.ragcache.orders import Arrival, CacheAware, FarthestNextUse
from bench.simulator.prompt_cache import CacheSize, PromptCache, computed_once, replay
from carpool.errors import ConfigError
from carpool.vllm import KvHostPolicy
from generator.plan.cached_prefixes import CachedPrefixes
from generator.plan.kv_tree import KvTree

BLOCK = 16


def in_vllm(test: Any) -> Any:
    """Marks a test that imports vLLM, whose imports warn."""
    return pytest.mark.vllm(pytest.mark.filterwarnings("ignore::DeprecationWarning")(test))


def server(blocks: int, *, host_blocks: int = 0, policy: KvHostPolicy = "lru") -> PromptCache:
    return PromptCache(
        CacheSize(
            blocks=blocks,
            host_blocks=host_blocks,
            host_policy=policy,
            block_tokens=BLOCK,
            concurrency=1,
            output_tokens=1,
        )
    )


def prompt(question: int, *passages: int) -> tuple[int, ...]:
    """A block for the head, one for each passage, and two tokens."""
    body = [passage for passage in passages for _ in range(BLOCK)]
    return (*[0] * BLOCK, *body, 1_000 + question, 2_000)


def found_by(cache: PromptCache, *prompts: tuple[int, ...]) -> list[tuple[int, int]]:
    """Returns how many blocks of each prompt were on the GPU, and on the host."""
    found = []
    for each in prompts:
        counts = replay([each], cache, Arrival, backlog=1)
        found.append(((counts.cached - counts.on_host) // BLOCK, counts.on_host // BLOCK))
    return found


A, B, C = prompt(0, 1, 2), prompt(1, 1, 3), prompt(2, 4, 5)
PROMPTS = [prompt(*each) for each in ((0, 1, 2), (1, 3, 4), (2, 2, 1), (3, 5, 6), (4, 3, 2))]
PROMPTS.append(PROMPTS[0])


@in_vllm
def test_full_blocks_of_the_common_beginning_are_cached_and_one_token_is_computed() -> None:
    assert found_by(server(20), A, A, B, C) == [(0, 0), (3, 0), (2, 0), (1, 0)]
    assert found_by(server(20), A[: 2 * BLOCK], A[: 2 * BLOCK]) == [(0, 0), (1, 0)]


@in_vllm
def test_what_the_gpu_has_no_room_for_is_found_on_the_host() -> None:
    # 5 blocks, of which vLLM keeps one; each prompt takes four.
    assert found_by(server(5), A, C, A) == [(0, 0), (1, 0), (1, 0)]
    assert found_by(server(5, host_blocks=8), A, C, A) == [(0, 0), (1, 0), (1, 2)]


@in_vllm
@pytest.mark.parametrize("policy", get_args(KvHostPolicy))
@given(st.lists(st.lists(st.integers(1, 3), max_size=4), max_size=30))
@settings(max_examples=20)
def test_a_tree_fed_by_all_events_knows_what_is_cached_on_gpu_and_host(
    policy: KvHostPolicy, drawn: list[list[int]]
) -> None:
    cache, tree, seq = server(8, host_blocks=9, policy=policy), KvTree(), 0
    for number, passages in enumerate(drawn):
        asked = prompt(number, *passages)
        expected = tree.cached_of(asked[:-1])
        cache.add(asked)
        while cache.running:
            assert [counts.cached for counts in cache.step()] in ([], [expected])
            for batch in cache.take_batches(seq):
                tree.step(batch)
                tree.check_integrity()
                seq += 1


@in_vllm
@pytest.mark.parametrize("order", [Arrival, CacheAware, CachedPrefixes])
def test_no_order_surpasses_the_bound(order: type[CachedPrefixes]) -> None:
    bound = computed_once(PROMPTS, BLOCK)
    assert replay(PROMPTS, server(9), order, backlog=6).cached_share <= bound.cached_share


@in_vllm
def test_with_memory_for_all_the_order_of_arrival_reaches_the_bound() -> None:
    assert replay(PROMPTS, server(1_000), Arrival, backlog=1) == computed_once(PROMPTS, BLOCK)


@in_vllm
def test_a_backlog_sends_together_what_begins_alike() -> None:
    twice = [prompt(n, 1 + n % 6, 9) for n in range(12)]  # each first passage comes back after six
    alone, together = (replay(twice, server(10), CachedPrefixes, backlog=n) for n in (1, 12))
    assert alone.cached == 11 * BLOCK, "the head alone"
    assert together.cached == (11 + 6 * 2) * BLOCK, "and two blocks of every second prompt"


@in_vllm
def test_the_oracle_keeps_what_is_needed_next() -> None:
    asked = [prompt(n, *each) for n, each in enumerate(((1,), (2,), (3,), (2,), (1,)))]
    found = {}
    for name in ("lru", "oracle"):
        cache = server(4, host_blocks=3)
        if name == "oracle":
            cache.replace_host_policy(FarthestNextUse(asked, cache))
        found[name] = [on_host for _, on_host in found_by(cache, *asked)]
    assert found == {"lru": [0, 0, 0, 0, 0], "oracle": [0, 0, 0, 1, 0]}


def test_the_bound_computes_each_block_once() -> None:
    # The head, 1, 1-2, 3, 3-4, 2, 2-1, 5, 5-6, 3-2, and two tokens of each prompt.
    assert computed_once(PROMPTS, BLOCK).computed == 10 * BLOCK + 6 * 2


def test_without_vllm_there_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="vLLM is not installed"):
        server(8)

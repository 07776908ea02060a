"""Streams of prompts to several simulated servers."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from bench.generation.block_simulator import CacheSize
from bench.generation.replicas import ReplicasCase, ReplicasResult, send_to_replicas
from bench.generation.simulation import Renderer
from bench.generation.streams import Ask
from generator.plan.kv_tree import BlockDigest, KvTree
from generator.plan.order.factory import ORDER_NAMES, OrderName

BLOCK = 4
SIZE = CacheSize(blocks=200, block_tokens=BLOCK, concurrency=2, output_tokens=4)


class Ids:
    """Prompts of 8 tokens for each passage, and one for the question."""

    def render(self, question: str, passages: Sequence[int]) -> tuple[int, ...]:
        return (*(passage for passage in passages for _ in range(8)), int(question))


def send(asks: Sequence[Ask], case: ReplicasCase, size: CacheSize = SIZE) -> ReplicasResult:
    renderer = Renderer(Ids(), block_tokens=BLOCK)  # type: ignore[arg-type]
    return send_to_replicas(asks, case, size, renderer)


def ask(question: int, *passages: int) -> Ask:
    scores = tuple(1.0 - place / 10 for place in range(len(passages)))
    return Ask(question=str(question), passages=passages, scores=scores)


def popular_asks(asks: int, seed: int) -> list[Ask]:
    rng = random.Random(seed)
    topics = rng.choices(range(30), weights=[1 / (rank + 1) for rank in range(30)], k=asks)
    return [ask(question, topic, 100 + topic) for question, topic in enumerate(topics)]


def test_round_robin_computes_what_each_server_sees_first() -> None:
    asks = [ask(1, 7), ask(2, 7), ask(3, 7), ask(4, 7)]
    found = send(asks, ReplicasCase(servers=2, order=None))
    assert (found.share.prompts, found.share.cached_tokens) == (4, 16)
    assert (found.requests_of_mean, found.computed_of_mean) == (1.0, 1.0)


def test_the_busiest_server_is_compared_with_the_mean() -> None:
    found = send([ask(1, 7), ask(2, 7), ask(3, 7)], ReplicasCase(servers=2, order=None))
    assert found.requests_of_mean == 2 / 1.5
    assert found.computed_of_mean == 10 / 9.5


def test_blocks_that_are_credited_and_not_there_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_much(tree: KvTree, digests: Sequence[BlockDigest]) -> int:
        return len(digests) * tree.block_tokens

    monkeypatch.setattr(KvTree, "cached_tokens", too_much)
    found = send([ask(1, 7), ask(2, 8)], ReplicasCase(servers=1, order="cached_prefix"))
    assert found.miscredited_blocks == 2


def test_a_prompt_follows_the_server_that_has_it() -> None:
    asks = [ask(question, 7 if question % 2 else 8) for question in range(1, 9)]
    found = send(asks, ReplicasCase(servers=2, order="arrival", backlog=-2))
    assert found.share.cached_tokens == 6 * 8, "each passage is computed once"
    assert found.requests_of_mean == 1.0


@pytest.mark.parametrize("order", ORDER_NAMES)
def test_best_match_beats_round_robin_and_spreads_the_work(order: OrderName) -> None:
    asks = popular_asks(600, seed=1)
    size = CacheSize(blocks=120, block_tokens=BLOCK, concurrency=8, output_tokens=4)
    baseline = send(asks, ReplicasCase(servers=4, order=None), size)
    backlog = -16 if order == "arrival" else 32
    found = send(asks, ReplicasCase(servers=4, order=order, backlog=backlog), size)
    assert found.share.share > baseline.share.share + 0.05
    assert found.answered == found.share.prompts == 600
    assert (found.resent, found.miscredited_blocks) == (0, 0)
    assert found.requests_of_mean < 1.15


@pytest.mark.parametrize("order", ORDER_NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_after_a_kill_every_prompt_is_answered_and_no_block_is_credited_that_is_not_there(
    order: OrderName, seed: int
) -> None:
    asks = popular_asks(300, seed)
    case = ReplicasCase(servers=2, order=order, backlog=8, overtaken_max=8, killed_after=100)
    found = send(asks, case)
    assert found.answered == 300
    assert 1 <= found.resent <= SIZE.concurrency
    assert found.miscredited_blocks == 0


def test_equal_runs_are_equal() -> None:
    asks = popular_asks(200, seed=5)
    case = ReplicasCase(servers=3, order="cached_prefix", backlog=20, killed_after=50)
    assert send(asks, case) == send(asks, case)

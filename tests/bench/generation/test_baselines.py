"""Orders that know no cache, and the bound of all orders, in streams that are counted by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.generation.baselines import (
    ContextIndex,
    by_shared_passages,
    computed_once,
    context_pilot,
    send,
)
from bench.generation.block_simulator import CacheSize
from bench.generation.simulation import (
    OrderCase,
    Renderer,
    by_score,
    send_in_order,
    share_of,
)
from bench.generation.streams import Ask
from generator.plan.order.factory import ORDER_NAMES, OrderName

BLOCK = 4


class StandInPrompts:
    """A prompt is a block for the head, one for each passage, and two tokens."""

    def render(self, question: str, passages: Sequence[int]) -> tuple[int, ...]:
        head = [0] * BLOCK
        body = [passage for passage in passages for _ in range(BLOCK)]
        return (*head, *body, 1_000 + int(question), 2_000)


def ask(question: int, *passages: int) -> Ask:
    scores = tuple(1.0 - 0.1 * place for place in range(len(passages)))
    return Ask(question=str(question), passages=passages, scores=scores)


def renderer() -> Renderer:
    return Renderer(StandInPrompts(), block_tokens=BLOCK)  # type: ignore[arg-type]


ASKS = [ask(0, 1, 2), ask(1, 3, 4), ask(2, 2, 1), ask(3, 5, 6), ask(4, 3, 2), ask(0, 1, 2)]
SIZE = CacheSize(blocks=9, block_tokens=BLOCK, concurrency=1, output_tokens=0)


def questions(asks: Sequence[Ask]) -> list[int]:
    return [int(each.question) for each in asks]


def test_prompts_are_sorted_by_the_passages_that_they_share() -> None:
    assert questions(list(by_shared_passages(ASKS, backlog=6))) == [0, 2, 0, 4, 1, 3]
    assert questions(list(by_shared_passages(ASKS, backlog=2))) == [0, 2, 1, 4, 0, 3]
    assert questions(list(by_shared_passages(ASKS, backlog=1))) == questions(ASKS)


def test_passages_are_aligned_to_an_order_that_earlier_prompts_had() -> None:
    index = ContextIndex()
    assert index.align((1, 2, 3)) == ((0, 1, 2), 0)
    assert index.align((3, 2, 1)) == ((2, 1, 0), 3)
    assert index.align((4, 2, 1)) == ((2, 1, 0), 2)
    assert index.align((4, 2)) == ((0, 1), 0)


def test_of_passages_that_begin_earlier_prompts_the_one_of_most_prompts_is_first() -> None:
    index = ContextIndex()
    for passages in ((1, 2), (3, 4), (3, 5)):
        index.align(passages)
    assert index.align((1, 3)) == ((1, 0), 1)


def test_a_batch_is_sent_in_groups_of_one_first_passage() -> None:
    sent = list(context_pilot(ASKS, backlog=6))
    # 2 begins with the passage 1 because 0 did; 4 begins with the 3, which began 1.
    assert questions([one for one, _ in sent]) == [2, 0, 0, 4, 1, 3]
    assert [places for _, places in sent] == [(1, 0), *[(0, 1)] * 5]


@pytest.mark.parametrize("order", ORDER_NAMES)
@pytest.mark.parametrize("score_loss_max", [None, 2.0])
def test_no_order_surpasses_the_bound(order: OrderName, score_loss_max: float | None) -> None:
    bound = computed_once(ASKS, score_loss_max, renderer())
    case = OrderCase(order=order, backlog=6, score_loss_max=score_loss_max)
    found = share_of(list(send_in_order(ASKS, case, SIZE, renderer())))
    assert found.share <= bound.share


def test_the_bound_computes_each_block_once() -> None:
    # The head, 1, 1-2, 3, 3-4, 2, 2-1, 5, 5-6, 3-2, and two tokens of each prompt.
    assert computed_once(ASKS, None, renderer()).computed_tokens == 10 * BLOCK + 6 * 2


def test_with_memory_for_all_the_order_of_arrival_reaches_the_bound() -> None:
    large = CacheSize(blocks=1_000, block_tokens=BLOCK, concurrency=1, output_tokens=0)
    sent = send(((one, by_score(one)) for one in ASKS), large, renderer())
    assert share_of(list(sent)) == computed_once(ASKS, None, renderer())

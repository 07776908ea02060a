"""In which orders the passages of a prompt may stand. Pure.

Passages that are nearly as good as each other may change places, so that more of the prompt is
cached. Citations follow, because passages are numbered in the order in which they stand.
(ContextPilot aligns passages to those of earlier prompts, without a bound on scores.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def passage_orders(
    scores: Sequence[float], *, score_loss_max: float, orders_max: int
) -> tuple[tuple[int, ...], ...]:
    """Returns the orders of passages, each as their places in the order of scores, from 0.

    `scores`: the best first. No passage stands before one whose score is more than
    `score_loss_max` higher. The first order is that of the scores; with 0 only equal scores change
    places. Not more than `orders_max`, which are the nearest to the order of the scores.
    """
    orders = []
    for order in _extended((), scores, score_loss_max):
        orders.append(order)
        if len(orders) == orders_max:
            break
    return tuple(orders)


def _extended(
    placed: tuple[int, ...], scores: Sequence[float], score_loss_max: float
) -> Iterator[tuple[int, ...]]:
    """Yields all orders that begin with `placed`, in the order of their places."""
    left = [place for place in range(len(scores)) if place not in placed]
    if not left:
        yield placed
        return
    for place in left:
        # All that are left come later; the best of them is the first.
        if scores[left[0]] - scores[place] <= score_loss_max:
            yield from _extended((*placed, place), scores, score_loss_max)

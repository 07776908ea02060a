"""In which orders the passages of a prompt may stand. Pure.

Passages with nearly equal scores may be reordered, so that more of the prompt is cached. Citations
follow, because passages are numbered in the order in which they stand. (ContextPilot aligns
passages to those of earlier prompts, without a bound on scores.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def passage_orders(
    scores: Sequence[float], *, score_loss_max: float, orders_max: int
) -> tuple[tuple[int, ...], ...]:
    """Returns orders of the passages. Each order is a list of ranks by score, from 0.

    `scores`: the best first. No passage stands before one whose score is more than `score_loss_max`
    higher. The first order is that of the scores; with 0 only passages with equal scores are
    reordered. Returns at most `orders_max` orders, those nearest to the order of the scores.
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
    """Yields all orders that begin with `placed`, in lexical order."""
    left = [place for place in range(len(scores)) if place not in placed]
    if not left:
        yield placed
        return
    for place in left:
        # All passages in `left` come later; the best of them is the first.
        if scores[left[0]] - scores[place] <= score_loss_max:
            yield from _extended((*placed, place), scores, score_loss_max)

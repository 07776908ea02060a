"""Orders of groups: by similarity or arrival; no query with a deadline is overtaken."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from grouper.plan.grouping import Groups
from grouper.plan.jaccard import jaccard_matrix
from grouper.plan.order import ORDER_NAMES, OrderName, group_order
from grouper.plan.order.nearest_chain import FADE

CLUSTERS = st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True).map(tuple)


@st.composite
def windows(
    draw: st.DrawFn,
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]], Groups, tuple[int, ...]]:
    """Clusters of those who left before, clusters of the window, a partition of it, positions with
    a deadline.
    """
    clusters = draw(st.lists(CLUSTERS, max_size=12))
    labels = draw(st.lists(st.integers(0, 4), min_size=len(clusters), max_size=len(clusters)))
    members: dict[int, list[int]] = {}
    for position, label in enumerate(labels):
        members.setdefault(label, []).append(position)
    deadlines = draw(st.sets(st.integers(0, len(clusters) - 1))) if clusters else set()
    before = draw(st.lists(CLUSTERS, max_size=4))
    return before, clusters, tuple(map(tuple, members.values())), tuple(sorted(deadlines))


def matrices(
    before: Sequence[tuple[int, ...]], clusters: Sequence[tuple[int, ...]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    every = jaccard_matrix([*before, *clusters])
    return every[len(before) :, len(before) :], every[: len(before), len(before) :]


def ordered(
    name: OrderName,
    clusters: Sequence[tuple[int, ...]],
    groups: Groups | None = None,
    *,
    before: Sequence[tuple[int, ...]] = (),
    deadlines: Sequence[int] = (),
) -> Groups:
    whole = (tuple(range(len(clusters))),) if clusters else ()
    return group_order(name).order(groups or whole, *matrices(before, clusters), deadlines)


def dumb(
    name: OrderName,
    before: list[tuple[int, ...]],
    clusters: list[tuple[int, ...]],
    groups: Groups,
    deadlines: Sequence[int],
) -> Groups:
    """The definition, from scratch at every step."""
    similarity, to_before = matrices(before, clusters)
    everyone = range(len(clusters))
    placed: list[int] = []
    result: list[list[int]] = []

    def may_leave(member: int) -> bool:
        return member not in placed and all(
            early in placed for early in deadlines if early < member
        )

    def warmth(member: int) -> float:
        found = 0.0
        for row in [*to_before, *(similarity[one] for one in placed)]:
            found = found * FADE + float(row[member])
        return found

    def best(members: Sequence[int]) -> int | None:
        free = [member for member in members if may_leave(member)]
        if not free:
            return None
        return (
            min(free)
            if name == "arrival"
            else min(free, key=lambda member: (-warmth(member), member))
        )

    while (following := best(everyone)) is not None:
        group = next(members for members in groups if following in members)
        result.append([])
        chosen: int | None = following
        while chosen is not None:
            placed.append(chosen)
            result[-1].append(chosen)
            chosen = best(group)
    return tuple(map(tuple, result))


def test_nearest_chain_puts_next_the_query_most_similar_to_those_just_before() -> None:
    clusters = [(1, 2), (7, 8), (2, 3), (8, 9), (3, 4)]
    assert ordered("nearest_chain", clusters) == ((0, 2, 4, 1, 3),)


def test_nearest_chain_continues_from_the_end_of_the_last_window() -> None:
    clusters = [(1, 2), (7, 8)]
    assert ordered("nearest_chain", clusters) == ((0, 1),)
    assert ordered("nearest_chain", clusters, before=[(1, 2), (8, 9)]) == ((0, 1),), (
        "the likeness of equals outweighs"
    )
    assert ordered("nearest_chain", clusters, before=[(2, 3), (8, 9)]) == ((1, 0),), (
        "of two that are alike, the later counts"
    )


def test_a_query_with_a_deadline_may_overtake_but_is_not_overtaken() -> None:
    clusters = [(1, 2), (7, 8), (2, 3), (3, 4), (8, 9)]
    assert ordered("nearest_chain", clusters) == ((0, 2, 3, 1, 4),)
    assert ordered("nearest_chain", clusters, deadlines=[1]) == ((0, 1, 4, 2, 3),), (
        "who came later waits for it"
    )
    assert ordered("nearest_chain", clusters, deadlines=[3]) == ((0, 2, 3, 1, 4),), (
        "it may leave before who came earlier"
    )


@pytest.mark.parametrize("name", ORDER_NAMES)
@given(window=windows())
def test_an_order_is_what_its_definition_says(
    name: OrderName,
    window: tuple[list[tuple[int, ...]], list[tuple[int, ...]], Groups, tuple[int, ...]],
) -> None:
    before, clusters, groups, deadlines = window
    assert group_order(name).order(groups, *matrices(before, clusters), deadlines) == dumb(
        name, before, clusters, groups, deadlines
    )


@pytest.mark.parametrize("name", ORDER_NAMES)
@given(window=windows())
def test_no_deadline_is_overtaken_and_no_query_is_lost(
    name: OrderName,
    window: tuple[list[tuple[int, ...]], list[tuple[int, ...]], Groups, tuple[int, ...]],
) -> None:
    before, clusters, groups, deadlines = window
    result = group_order(name).order(groups, *matrices(before, clusters), deadlines)
    flat = list(itertools.chain(*result))
    assert sorted(flat) == list(range(len(clusters)))
    assert all(type(member) is int for member in flat)
    for position in deadlines:
        assert all(earlier < position for earlier in flat[: flat.index(position)])
        assert flat.index(position) <= position
    for members in result:
        assert any(set(members) <= set(group) for group in groups), "groups are cut, never joined"
    if not deadlines:
        assert sorted(map(sorted, result)) == sorted(map(sorted, groups)), (
            "and cut only for a deadline"
        )

"""Which queries share a group, and in which order groups leave: CaGR-RAG to the letter."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from grouper.plan.jaccard import jaccard_matrix, similar_groups
from grouper.plan.plan_groups import Groups, by_arrival, plan_groups

Clusters = list[tuple[int, ...]]

WINDOWS = st.lists(
    st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True).map(tuple), max_size=16
)
THETAS = st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.3, 1 / 3, 0.4, 0.5, 0.6, 2 / 3, 0.75, 0.8, 1.0])


def group(clusters: Clusters, theta: float = 0.5) -> Groups:
    return similar_groups(clusters, jaccard_similarity_min=theta)


def jaccard(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    return float(Fraction(len({*a} & {*b}), len({*a} | {*b})))


def algorithm_1(clusters: Clusters, theta: float) -> Groups:
    """Lines 3 to 19, line by line."""
    groups: list[list[int]] = []
    for i, c in enumerate(clusters):
        for g in groups:
            if max(jaccard(c, clusters[j]) for j in g) >= theta:
                g.append(i)
                break
        else:
            groups.append([i])
    return tuple(tuple(g) for g in groups)


@given(clusters=WINDOWS)
@example(clusters=[])
@example(clusters=[(0, 2**31 - 1), (2**31 - 1, 5)])
def test_the_matrix_product_equals_counting_pair_by_pair(clusters: Clusters) -> None:
    # Exactly the nearest float64, so that a threshold written as a decimal compares as expected.
    expected = [[jaccard(a, b) for b in clusters] for a in clusters]
    assert jaccard_matrix(clusters).tolist() == expected


@given(clusters=WINDOWS, theta=THETAS)
@example(clusters=[(0, 1, 2), (0,)], theta=1 / 3)
@example(clusters=[(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), (0, 1, 2)], theta=0.3)
def test_groups_are_those_of_algorithm_1_line_by_line(clusters: Clusters, theta: float) -> None:
    groups = group(clusters, theta)
    assert groups == algorithm_1(clusters, theta)
    assert all(type(member) is int for members in groups for member in members)


def test_per_window_makes_one_group() -> None:
    def planned(clusters: Clusters) -> Groups:
        return plan_groups(clusters, [1], policy="per_window", jaccard_similarity_min=1.0)

    assert planned([(1,), (2,), (3,)]) == ((0, 1, 2),)
    assert planned([]) == ()


@st.composite
def partitions(draw: st.DrawFn) -> tuple[Groups, tuple[int, ...]]:
    """A partition of a window, and the positions with a deadline."""
    labels = draw(st.lists(st.integers(0, 4), max_size=12))
    members: dict[int, list[int]] = {}
    for position, label in enumerate(labels):
        members.setdefault(label, []).append(position)
    deadlines = draw(st.sets(st.integers(0, len(labels) - 1))) if labels else set()
    return tuple(map(tuple, members.values())), tuple(sorted(deadlines))


def dumb(groups: Groups, deadlines: Sequence[int]) -> Groups:
    """The definition, from scratch at every step."""
    waiting = sorted(itertools.chain(*groups))
    result: list[tuple[int, ...]] = []
    while waiting:
        group = next(members for members in groups if waiting[0] in members)
        run: list[int] = []
        for member in sorted(set(group) & set(waiting)):
            if any(early in waiting and early < member for early in deadlines):
                break
            run.append(member)
            waiting.remove(member)
        result.append(tuple(run))
    return tuple(result)


@given(window=partitions())
def test_no_deadline_is_overtaken_and_no_query_is_lost(
    window: tuple[Groups, tuple[int, ...]],
) -> None:
    groups, deadlines = window
    result = by_arrival(groups, deadlines)
    assert result == dumb(groups, deadlines)
    flat = list(itertools.chain(*result))
    assert sorted(flat) == sorted(itertools.chain(*groups))
    for position in deadlines:
        assert all(earlier < position for earlier in flat[: flat.index(position)])
    assert all(any(set(members) <= set(group) for group in groups) for members in result), (
        "groups are cut, never joined"
    )
    if not deadlines:
        assert sorted(result) == sorted(groups), "and cut only for a deadline"

"""The horizon: when each cluster is wanted next, over windows that were read ahead."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from grouper.plan.horizon import plan_horizon, wants_of
from schemas.group import HorizonEntry
from schemas.record import ClusterId

WINDOWS = st.lists(
    st.lists(
        st.lists(st.integers(0, 300).map(ClusterId), min_size=1, max_size=6, unique=True),
        max_size=5,
    ),
    max_size=5,
)


def horizon(
    windows: list[list[tuple[ClusterId, ...]]] | list[list[list[ClusterId]]],
    bytes_max: int | None = None,
) -> tuple[HorizonEntry, ...]:
    return plan_horizon([wants_of(window) for window in windows], bytes_max=bytes_max)


def entries(*numbers: tuple[int, int, int]) -> tuple[HorizonEntry, ...]:
    return tuple(HorizonEntry(cluster=ClusterId(c), windows=w, queries=q) for c, w, q in numbers)


def ids(*numbers: int) -> tuple[ClusterId, ...]:
    return tuple(map(ClusterId, numbers))


def test_what_does_not_fit_is_what_is_wanted_last_and_by_the_fewest() -> None:
    windows = [[ids(4), ids(9), ids(9)], [ids(2), ids(7), ids(7)]]
    one_bytes = len(msgspec.json.encode(entries((4, 1, 1))[0])) + 1
    assert horizon(windows, bytes_max=4 * one_bytes) == entries(
        (4, 1, 1), (9, 1, 2), (2, 2, 1), (7, 2, 2)
    )
    assert horizon(windows, bytes_max=4 * one_bytes - 1) == entries((4, 1, 1), (9, 1, 2), (7, 2, 2))
    assert horizon(windows, bytes_max=one_bytes) == entries((9, 1, 2))
    assert horizon(windows, bytes_max=0) == ()


@given(windows=WINDOWS)
def test_every_entry_says_when_and_how_often(windows: list[list[list[ClusterId]]]) -> None:
    found = horizon(windows)
    flat = [
        (number, c)
        for number, window in enumerate(windows, 1)
        for clusters in window
        for c in clusters
    ]
    assert {entry.cluster for entry in found} == {c for _, c in flat}
    for entry in found:
        assert entry.windows == min(number for number, c in flat if c == entry.cluster)
        assert entry.queries == sum(c == entry.cluster for _, c in flat)
    order = [(entry.windows, entry.cluster) for entry in found]
    assert order == sorted(set(order))


@given(windows=WINDOWS, bytes_max=st.integers(0, 2_000))
def test_a_horizon_within_bytes_is_the_best_part_of_the_whole_one(
    windows: list[list[list[ClusterId]]], bytes_max: int
) -> None:
    whole, found = horizon(windows), horizon(windows, bytes_max=bytes_max)
    assert len(msgspec.json.encode(found)) <= bytes_max + 2
    assert set(found) <= set(whole)
    worth = sorted(whole, key=lambda entry: (entry.windows, -entry.queries, entry.cluster))
    assert set(found) == set(worth[: len(found)])
    if len(found) < len(whole):
        assert (
            sum(len(msgspec.json.encode(entry)) + 1 for entry in worth[: len(found) + 1])
            > bytes_max
        )

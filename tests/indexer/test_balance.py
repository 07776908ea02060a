"""Which clusters are split and which are dissolved: pairs, so that there are as many afterwards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.plan.balance import Balance, plan_balance, unevenness


def test_the_far_too_large_one_is_split_and_the_smallest_gives_its_place() -> None:
    # mean 20: 60 is more than 50; halves of 30 are fine, and 8 is the smallest
    assert plan_balance([60, 8, 10, 12, 10]) == Balance((1,), ((0, 2),))


def test_a_far_too_small_one_is_dissolved_although_none_is_too_large() -> None:
    # mean 20: 4 is less than 5
    assert plan_balance([30, 4, 24, 22, 20]) == Balance((1,), ((0, 2),))


def test_a_very_large_one_takes_as_many_places_as_it_needs() -> None:
    # mean 125.5: 900 in 3 pieces of 300 are within 313
    assert plan_balance([900, *[40] * 8, 35]) == Balance((9, 1), ((0, 3),))


@pytest.mark.parametrize(
    "counts", [[5], [20, 20, 20], [49, 6, 15, 10], [0, 0, 0], [1, 1, 0, 0], [2, 0, 0, 0]]
)
def test_what_is_even_or_cannot_be_better_is_left(counts: list[int]) -> None:
    assert plan_balance(counts) == Balance((), ())


counts_of = st.lists(st.one_of(st.integers(0, 30), st.integers(0, 5000)), min_size=1, max_size=60)


@given(counts=counts_of)
def test_places_given_are_places_taken_and_no_cluster_does_both(
    counts: list[int],
) -> None:
    balance = plan_balance(counts)
    assert sum(pieces - 1 for _, pieces in balance.splits) == len(balance.dissolved)
    split = [cluster for cluster, _ in balance.splits]
    assert len({*split, *balance.dissolved}) == len(split) + len(balance.dissolved)
    for cluster, pieces in balance.splits:
        # Each piece has rows, and is worth more than what was given up first.
        assert counts[cluster] > pieces
        assert counts[cluster] / pieces > counts[balance.dissolved[0]]


@given(counts=counts_of)
def test_if_splits_came_out_even_the_largest_would_never_be_larger_and_the_smallest_never_smaller(
    counts: list[int],
) -> None:
    balance = plan_balance(counts)
    pieces = dict(balance.splits)
    after = [
        counts[cluster] / pieces.get(cluster, 1)
        for cluster in range(len(counts))
        for _ in range(pieces.get(cluster, 1))
        if cluster not in balance.dissolved
    ]
    assert len(after) == len(counts)
    assert max(after) <= max(counts)
    assert min(after) >= min(counts)
    if balance.splits:
        assert unevenness(counts) > 0


@given(counts=counts_of)
def test_unevenness_is_nothing_exactly_where_all_are_within_the_factors(
    counts: list[int],
) -> None:
    mean = sum(counts) / len(counts)
    within = all(0.25 * mean <= count <= 2.5 * mean for count in counts)
    assert (unevenness(counts) == 0) == within

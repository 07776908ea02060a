"""Each question once: what is missing, what came twice, what failed."""

from __future__ import annotations

import pytest

from bench.core.accounting import account
from bench.core.spread import spread


@pytest.mark.parametrize(
    ("published", "received", "failed", "holds"),
    [
        ("ab", "ba", "", True),
        ("ab", "a", "", False),
        ("ab", "abb", "", False),
        ("ab", "ab", "b", False),
        ("a", "az", "z", True),
    ],
)
def test_the_accounting_holds_when_each_question_was_answered_once(
    published: str, received: str, failed: str, holds: bool
) -> None:
    assert account(published, received, failed).holds is holds


def test_the_counts_say_what_became_of_each_question() -> None:
    found = account("abcd", "aaabcz", "cz")
    assert (found.answered, found.missing, found.duplicates) == (2, 2, 2)


# ---- spreads are of all values, and percentiles interpolate


def test_percentiles_interpolate_between_neighbours_over_all_values() -> None:
    found = spread(range(101))
    assert found is not None
    assert (found.count, found.mean, found.p50, found.p99, found.max) == (101, 50, 50, 99, 100)
    two = spread([10.0, 20.0])
    assert two is not None
    assert (two.p50, two.p99) == (15.0, pytest.approx(19.9))
    assert spread([]) is None

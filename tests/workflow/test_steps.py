"""What programs get and ask for."""

from __future__ import annotations

from carpool.workflow import Found
from tests.records import some_hits


def test_passages_of_two_searches_add_up_in_order_each_once() -> None:
    first, second, third = some_hits(3)
    both = Found([first, second]) + Found([third, second])
    assert list(both) == [first, second, third]

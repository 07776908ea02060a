"""Waves leave as one transaction; nothing waits for long, and what is alone not at all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from carpool.kafka.delivery.gathering import GATHER_US, QUIET_US, Gathering

TIMES = st.integers(1, 200_000)


def test_what_is_alone_leaves_at_once() -> None:
    gathering = Gathering()
    assert gathering.due_us(100, is_working=True) == 100, "nothing was finished: there is nothing to wait with"
    gathering.came(5_000)
    assert gathering.due_us(100, is_working=False) == 100


def test_a_wave_leaves_when_no_more_of_it_comes() -> None:
    gathering = Gathering()
    for now_us in (5_000, 6_000, 7_500):
        gathering.came(now_us)
    assert gathering.due_us(100, is_working=True) == 7_500 + QUIET_US


def test_what_never_ends_is_not_waited_for() -> None:
    gathering = Gathering()
    for now_us in range(5_000, 50_000, 1_000):
        gathering.came(now_us)
    assert gathering.due_us(100, is_working=True) == 5_000 + GATHER_US
    assert gathering.due_us(20_000, is_working=True) == 20_000 + GATHER_US, "a wave may come as the pause ends"


def test_what_was_taken_is_waited_with_no_more() -> None:
    gathering = Gathering()
    gathering.came(5_000)
    gathering.taken()
    assert gathering.due_us(100, is_working=True) == 100
    gathering.came(9_000)
    assert gathering.due_us(100, is_working=True) == 9_000 + QUIET_US


@given(times=st.lists(TIMES, min_size=1).map(sorted), next_us=TIMES, is_working=st.booleans())
def test_it_is_never_too_early_and_never_much_later(times: list[int], next_us: int, is_working: bool) -> None:
    gathering = Gathering()
    for now_us in times:
        gathering.came(now_us)
    due_us = gathering.due_us(next_us, is_working=is_working)
    assert next_us <= due_us <= max(next_us, times[0]) + GATHER_US
    assert is_working or due_us == next_us

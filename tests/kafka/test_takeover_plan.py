"""Whom a takeover fences, and whom it waits for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from carpool.kafka.fencing import LIVING_WAIT_S, Takeover, Transaction

OPEN, ENDING = Transaction(1, is_ending=False), Transaction(1, is_ending=True)
NEXT = Transaction(2, is_ending=False)


def test_a_dead_owner_is_fenced_and_an_ending_transaction_is_waited_for() -> None:
    steps = Takeover().decide({"dead": OPEN, "ending": ENDING}, living=(), now_s=0.0)
    assert steps == (("dead",), ("ending",))


def test_a_living_owner_is_waited_for_while_its_first_transaction_is_unfinished() -> None:
    takeover = Takeover()
    assert takeover.decide({"a": OPEN}, {"a"}, 0.0) == ((), ("a",))
    assert takeover.decide({"a": ENDING}, {"a"}, LIVING_WAIT_S - 0.1) == ((), ("a",))
    assert takeover.decide({"a": NEXT}, {"a"}, LIVING_WAIT_S) == ((), ())


def test_a_living_owner_is_fenced_when_the_same_transaction_does_not_end() -> None:
    takeover = Takeover(living_wait_s=1.0)
    assert takeover.decide({"a": OPEN}, {"a"}, 0.0) == ((), ("a",))
    assert takeover.decide({"a": OPEN}, {"a"}, 1.0) == (("a",), ())


def test_an_owner_that_dies_meanwhile_is_fenced_whatever_it_began() -> None:
    takeover = Takeover()
    takeover.decide({"a": OPEN}, {"a"}, 0.0)
    assert takeover.decide({"a": NEXT}, (), 0.1) == (("a",), ())


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.booleans(), st.floats(0, 10, allow_nan=False)), min_size=1
    )
)
def test_a_living_owner_that_goes_on_is_never_fenced(looks: list[tuple[int, bool, float]]) -> None:
    """Times ascend; each look sees a transaction that began after those of the looks before."""
    takeover, now_s, started_at = Takeover(), 0.0, 0
    for newer, is_ending, passed_s in looks:
        now_s, started_at = now_s + passed_s, started_at + 1 + newer
        steps = takeover.decide({"a": Transaction(started_at, is_ending)}, {"a"}, now_s)
        assert steps.fence == ()

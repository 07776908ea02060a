"""What passes by itself is tried again after a bounded pause; what somebody must mend is not."""

from __future__ import annotations

import pytest

from carpool.errors import CarpoolError, DeploymentError, RetryableError
from carpool.loop.refusal import Refusal
from tests.clocks import HandClock

AWAY = RetryableError("the coordinator is away")


def insisted(errors: list[CarpoolError], stop_after: int = 99) -> tuple[int | None, list[float]]:
    """The result of a call that fails with these errors first, and the pauses in seconds."""
    clock, pauses, left = HandClock(), list[float](), list(errors)
    refusal = Refusal(clock)

    def call() -> int:
        if left:
            raise left.pop(0)
        return 7

    def wait(seconds: float) -> bool:
        assert str(AWAY) in str(refusal.reason)
        pauses.append(seconds)
        clock.sleep(int(seconds * 1e6))
        return len(pauses) >= stop_after

    found = refusal.insist(call, wait)
    assert refusal.reason is None or found is None
    return found, pauses


def test_what_passes_is_tried_again_at_least_every_five_seconds() -> None:
    assert insisted([]) == (7, [])
    assert insisted([AWAY] * 6) == (7, [1, 2, 4, 5, 5, 5])


def test_what_does_not_pass_is_raised() -> None:
    with pytest.raises(DeploymentError, match="Write on topic"):
        insisted([AWAY, DeploymentError("Write on topic a")])


def test_a_stop_ends_the_tries() -> None:
    assert insisted([AWAY] * 6, stop_after=2) == (None, [1, 2])

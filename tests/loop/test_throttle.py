"""When the loop takes records in, waits, or pauses its partitions."""

from __future__ import annotations

import pytest

from carpool.loop.stage import Credit
from carpool.loop.throttle import (
    BUSY_POLL_S,
    IDLE_POLL_S,
    PAUSE_AFTER_US,
    IntakeAction,
    Throttle,
    poll_s,
)

NOW_US = 1_000_000_000
SOME = Credit(records=1, size_bytes=1)


def action(throttle: Throttle, now_us: int = NOW_US, **changed: object) -> IntakeAction:
    state = {"finished_bytes": 0, "is_failed": False} | changed
    credit = state.pop("credit", SOME)
    return throttle.next(credit, **state, now_us=now_us)


@pytest.mark.parametrize(
    "blocked",
    [
        {"credit": Credit(records=0, size_bytes=1)},
        {"credit": Credit(records=1, size_bytes=0)},
        {"finished_bytes": 10},
    ],
)
def test_without_room_the_loop_waits_and_pauses_only_after_a_while(blocked: dict) -> None:
    throttle = Throttle(finished_bytes_max=10, has_queues=False)
    assert action(throttle) == "take"
    assert action(throttle, **blocked) == "wait"
    assert action(throttle, NOW_US + PAUSE_AFTER_US - 1, **blocked) == "wait"
    assert action(throttle, NOW_US + PAUSE_AFTER_US, **blocked) == "pause"
    assert action(throttle, NOW_US + PAUSE_AFTER_US) == "take"
    assert action(throttle, NOW_US + PAUSE_AFTER_US, **blocked) == "wait", "counted anew"
    queues = Throttle(finished_bytes_max=10, has_queues=True)
    assert action(queues, **blocked) == "fill"


def test_a_failure_pauses_the_intake_immediately() -> None:
    throttle = Throttle(finished_bytes_max=10, has_queues=True)
    assert action(throttle, is_failed=True) == "pause"


def test_a_pause_begins_once_and_its_length_is_returned_at_its_end() -> None:
    throttle = Throttle(finished_bytes_max=10, has_queues=False)
    assert throttle.resume(NOW_US) is None
    assert [throttle.pause(NOW_US), throttle.pause(NOW_US + 5)] == [True, False]
    assert throttle.is_paused
    assert throttle.resume(NOW_US + 7) == 7
    assert not throttle.is_paused


def test_a_poll_ends_when_the_stage_wants_to_be_called() -> None:
    assert poll_s(is_busy=False, wake_us=None, now_us=NOW_US) == IDLE_POLL_S
    assert poll_s(is_busy=True, wake_us=NOW_US + 10**9, now_us=NOW_US) == BUSY_POLL_S
    assert poll_s(is_busy=False, wake_us=NOW_US + 3_000, now_us=NOW_US) == 0.003
    assert poll_s(is_busy=True, wake_us=NOW_US - 3_000, now_us=NOW_US) == 0

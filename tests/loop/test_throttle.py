"""When the loop takes records in, waits, or pauses its partitions."""

from __future__ import annotations

import pytest

from carpool.loop.stage import Credit
from carpool.loop.throttle import BUSY_POLL_S, IDLE_POLL_S, IntakeAction, intake_action, poll_s

NOW_US = 1_000_000_000
SOME = Credit(records=1, size_bytes=1)


@pytest.mark.parametrize(
    ("credit", "finished_bytes", "is_stopped", "action"),
    [
        (SOME, 9, False, "take"),
        (Credit(records=0, size_bytes=1), 0, False, "fill"),
        (Credit(records=1, size_bytes=0), 0, False, "fill"),
        (SOME, 10, False, "fill"),
        (SOME, 0, True, "pause"),
    ],
)
def test_without_room_records_are_only_sorted_and_a_failure_pauses_the_intake(
    credit: Credit, finished_bytes: int, is_stopped: bool, action: IntakeAction
) -> None:
    found = intake_action(
        credit, finished_bytes=finished_bytes, finished_bytes_max=10, is_stopped=is_stopped
    )
    assert found == action


def test_a_poll_ends_when_the_stage_wants_to_be_called() -> None:
    assert poll_s(is_busy=False, wake_us=None, now_us=NOW_US) == IDLE_POLL_S
    assert poll_s(is_busy=True, wake_us=NOW_US + 10**9, now_us=NOW_US) == BUSY_POLL_S
    assert poll_s(is_busy=False, wake_us=NOW_US + 3_000, now_us=NOW_US) == 0.003
    assert poll_s(is_busy=True, wake_us=NOW_US - 3_000, now_us=NOW_US) == 0

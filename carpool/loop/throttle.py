"""Decides whether the loop accepts records, only sorts them, or pauses its partitions. Pure."""

from __future__ import annotations

from typing import Literal

from carpool.loop.stage import Credit

IDLE_POLL_S = 0.25
"""The longest wait for a record while no unit is in flight."""
BUSY_POLL_S = 0.02
"""The longest wait while units are in flight: the polling thread also serves their commits.

Each poll costs a tenth of a millisecond of CPU time.
"""
BLOCKED_POLL_S = 0.005
"""How often the credit is checked while nothing can be taken in."""

IntakeAction = Literal["take", "fill", "pause"]
"""take: poll and offer. fill: fill the queues of the priority classes, which pause the topics whose
queue is full. pause: pause all partitions and poll, to stay a member.
"""


def intake_action(
    credit: Credit, *, finished_bytes: int, finished_bytes_max: int, is_stopped: bool
) -> IntakeAction:
    """Returns the next action. `finished_bytes` is that of outputs that wait for their commit."""
    if is_stopped:
        return "pause"
    has_credit = credit.records > 0 and credit.size_bytes > 0
    return "take" if has_credit and finished_bytes < finished_bytes_max else "fill"


def poll_s(*, is_busy: bool, wake_us: int | None, now_us: int) -> float:
    """Returns how long a poll may wait. `wake_us`: time of the next call of the stage."""
    longest_s = BUSY_POLL_S if is_busy else IDLE_POLL_S
    if wake_us is None:
        return longest_s
    return min(longest_s, max(0.0, (wake_us - now_us) / 1_000_000))

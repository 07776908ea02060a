"""Decides whether the loop accepts records, only sorts them, or pauses its partitions. Pure."""

from __future__ import annotations

from typing import Literal

from carpool.loop.stage import Credit

IDLE_POLL_S = 0.05
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


class Throttle:
    """Times are epoch microseconds. Not thread-safe."""

    def __init__(self, *, finished_bytes_max: int) -> None:
        """`finished_bytes_max`: bytes of outputs that may wait for their commit."""
        self._finished_bytes_max = finished_bytes_max
        self._paused_since_us: int | None = None

    @property
    def is_paused(self) -> bool:
        return self._paused_since_us is not None

    def next(self, credit: Credit, *, finished_bytes: int, is_stopped: bool) -> IntakeAction:
        """Returns the next action. "take" requires `resume`, "pause" requires `pause`."""
        if is_stopped:
            return "pause"
        has_credit = credit.records > 0 and credit.size_bytes > 0
        return "take" if has_credit and finished_bytes < self._finished_bytes_max else "fill"

    def pause(self, now_us: int) -> bool:
        """Notes a pause; False if the partitions are already paused."""
        if self._paused_since_us is not None:
            return False
        self._paused_since_us = now_us
        return True

    def resume(self, now_us: int) -> int | None:
        """Ends a pause and returns its duration; None without a pause."""
        if self._paused_since_us is None:
            return None
        paused_us, self._paused_since_us = now_us - self._paused_since_us, None
        return paused_us


def poll_s(*, is_busy: bool, wake_us: int | None, now_us: int) -> float:
    """Returns how long a poll may wait. `wake_us`: time of the next call of the stage."""
    longest_s = BUSY_POLL_S if is_busy else IDLE_POLL_S
    if wake_us is None:
        return longest_s
    return min(longest_s, max(0.0, (wake_us - now_us) / 1_000_000))

"""Decides whether a part that failed is tried again, when, and how often. Pure.

A part is tried again by a record that owes it from then on (`Failure.again`), so its own record is
complete; or, where a service has no such record, in place: its unit is offered again.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from carpool.kafka.records import Message, Output
from carpool.loop.stage import Failure, Unit
from schemas.codec import WHOLE_NUMBER
from schemas.headers import NOT_BEFORE_HEADER
from schemas.record import header

DELAYED_MAX = 1_000
"""Units that wait for their retry, at most; beyond it a retry starts immediately.

A waiting unit delays the commit of later records of its partition.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureLimits:
    """The attempts of a part (1: no retry), the delay of a retry, and failures in a row.

    `in_a_row_max`: the member then leaves, so that its topic does not become dead letters.
    """

    attempts_max: int = 3
    retry_delay_us: int = 1_000_000
    in_a_row_max: int = 20


class RetryDecision(NamedTuple):
    """`outputs`: the record that tries it again ("again"), or its dead letter ("failed").

    "in_place": it is offered again at `begin_us`.
    """

    outcome: Literal["again", "in_place", "failed"]
    outputs: tuple[Output, ...]
    begin_us: int


def decide_retry(
    failure: Failure, *, attempt: int, limits: FailureLimits, group: str, now_us: int
) -> RetryDecision:
    """Retries while attempts are left and the next one begins before the deadline.

    `attempt`: the one that failed, from 1. `group`: the consumer group.
    """
    begin_us = now_us + limits.retry_delay_us
    has_time = failure.deadline_us is None or begin_us < failure.deadline_us
    if failure.is_transient and attempt < limits.attempts_max and has_time:
        if failure.again is None:
            return RetryDecision("in_place", (), begin_us)
        if (again := failure.again(begin_us, now_us)) is not None:
            return RetryDecision("again", (again,), begin_us)
    return RetryDecision("failed", (failure.letter(group, attempt, now_us),), now_us)


def begin_us_of(message: Message, retry_delay_us: int) -> int:
    """Returns the time to begin a record, epoch microseconds; 0: now.

    The time is from its header, and at most one retry delay after the record arrived.
    """
    text = (header(message.headers, NOT_BEFORE_HEADER) or b"").decode(errors="replace")
    if not WHOLE_NUMBER.fullmatch(text):
        return 0
    return min(int(text) * 1_000, message.received_us + retry_delay_us)


class RetryDelay:
    """Units that wait for their retry, while later records of their partition are processed.

    Not thread-safe. At most `DELAYED_MAX` wait, also revoked ones. Each call costs O(log n).
    """

    def __init__(self) -> None:
        # A heap by time; two parts of a unit may be tried again at the same time.
        self._waiting: list[tuple[int, int, int, Unit[Any]]] = []
        self._added = 0

    def add(self, unit: Unit[Any], until_us: int) -> bool:
        """Adds a unit; False when too many wait: the unit must begin now."""
        if len(self._waiting) >= DELAYED_MAX:
            return False
        self._added += 1
        heapq.heappush(self._waiting, (until_us, unit.id, self._added, unit))
        return True

    def due(self, now_us: int) -> list[Unit[Any]]:
        """Removes and returns the units that are due, in the order of their times."""
        units = []
        while self._waiting and self._waiting[0][0] <= now_us:
            units.append(heapq.heappop(self._waiting)[-1])
        return units

"""From the times of answers to pauses and takeovers, and the promises about them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from bench.core.accounting import Accounting
from bench.core.spread import Spread, spread

PAUSE_MS_MAX = 200.0
TAKEOVER_BEYOND_SESSION_S = 2.0

AnswerTimes = Mapping[int, Sequence[float]]
"""When answers to queries of each partition were read: epoch seconds, in order."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A member joined or left at `began_s`; watched until `ended_s` (epoch seconds).

    `stayed`: partitions that kept their member. `moved`: the others.
    """

    what: str
    began_s: float
    ended_s: float
    stayed: tuple[int, ...]
    moved: tuple[int, ...]


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """A member with `partitions` was killed inside an open transaction that contained offsets."""

    killed_s: float
    partitions: tuple[int, ...]


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a change.

    `pause_ms`: the longest gap of partitions that stayed, beyond the baseline's p99. `moving_ms`:
    the longest gap of those that moved.
    """

    change: Change
    pause_ms: float
    moving_ms: float


class RebalanceResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run.

    `baseline_ms`: gaps between answers of a partition without a change. `takeovers_s`: from each
    kill until each of its partitions was answered again. `session_s`: the session time-out.
    """

    accounting: Accounting
    baseline_ms: Spread | None
    pauses: tuple[Pause, ...]
    kills: tuple[Kill, ...]
    takeovers_s: tuple[dict[int, float], ...]
    session_s: float
    load_behind_ms_max: float


def gaps_ms(times_s: Sequence[float], begin_s: float, end_s: float) -> list[float]:
    """Returns the gaps from the last time before `begin_s` to the first after `end_s`."""
    return [
        (later - earlier) * 1_000
        for earlier, later in pairwise(times_s)
        if later > begin_s and earlier < end_s
    ]


def baseline(times: AnswerTimes, spans_s: Iterable[tuple[float, float]]) -> Spread | None:
    """Returns the gaps between answers of a partition in `spans_s`; None without any."""
    spans = tuple(spans_s)
    return spread(
        gap
        for each in times.values()
        for begin_s, end_s in spans
        for gap in gaps_ms(each, begin_s, end_s)
    )


def pause(change: Change, times: AnswerTimes, baseline_p99_ms: float) -> Pause:
    """Returns the cost of a change to the partitions that stayed, and to those that moved."""
    return Pause(
        change=change,
        pause_ms=_longest_ms(change, times, change.stayed) - baseline_p99_ms,
        moving_ms=_longest_ms(change, times, change.moved),
    )


def _longest_ms(change: Change, times: AnswerTimes, partitions: Sequence[int]) -> float:
    began_s, ended_s = change.began_s, change.ended_s
    gaps = [gap for each in partitions for gap in gaps_ms(times.get(each, ()), began_s, ended_s)]
    return max(gaps, default=0.0)


def took_over_s(kill: Kill, times: AnswerTimes, *, in_flight_s: float = 0.2) -> dict[int, float]:
    """Returns how long after the kill each of its partitions was answered again, or infinity.

    Answers within `in_flight_s` after the kill were committed by the killed member.
    """

    def next_s(partition: int) -> float:
        later = (at for at in times.get(partition, ()) if at > kill.killed_s + in_flight_s)
        return min(later, default=float("inf"))

    return {each: next_s(each) - kill.killed_s for each in kill.partitions}


def promises(result: RebalanceResult) -> dict[str, bool]:
    """Returns each promise and whether it was kept."""
    longest_s = result.session_s + TAKEOVER_BEYOND_SESSION_S
    accounting, pauses = result.accounting, result.pauses
    found = {
        "no gap: each query has an answer": not accounting.missing and not accounting.other,
        "no duplicate: no query has two": not accounting.duplicates,
        "in each change, partitions stayed and others moved": all(
            each.change.stayed and each.change.moved for each in pauses
        ),
        f"partitions that stay pause for less than {PAUSE_MS_MAX:g} ms beyond the baseline's p99": (
            bool(pauses) and all(each.pause_ms < PAUSE_MS_MAX for each in pauses)
        ),
    }
    if result.kills:
        found[f"takeover after a kill in a transaction within {longest_s:g} s"] = all(
            took_s <= longest_s for each in result.takeovers_s for took_s in each.values()
        )
    return found

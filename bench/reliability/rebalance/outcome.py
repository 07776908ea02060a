"""From times of answers to pauses and takeovers, and what was promised of them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from bench.core.accounting import Books
from bench.core.spread import Spread, spread

PAUSE_MS_MAX = 200.0
TAKEOVER_BEYOND_SESSION_S = 2.0

Times = Mapping[int, Sequence[float]]
"""When answers to queries of each partition were read, epoch seconds, in order."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A member came or went, at `began_s`; watched until `ended_s` (epoch seconds). `stayed`:
    partitions that kept their member.

    `rebalance_ms`: how long each member's polling thread was held up by it, as its metrics say.
    """

    what: str
    began_s: float
    ended_s: float
    stayed: tuple[int, ...]
    moved: tuple[int, ...]
    rebalance_ms: dict[str, float]


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """A member was killed inside an open transaction that held offsets, at `killed_s`;
    `partitions`: those that it had.
    """

    killed_s: float
    partitions: tuple[int, ...]


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """What a change cost. `pause_ms`: of partitions that stayed, beyond the baseline's p99;
    `moving_ms`: of others.
    """

    change: Change
    pause_ms: float
    moving_ms: float


class RebalanceResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run. `calm_ms`: times between answers of a partition while nobody came or
    went; `takeovers_s`: from each kill until each of its partitions went on; `session_s`: silence
    after which the brokers take a member for dead.
    """

    books: Books
    calm_ms: Spread | None
    pauses: tuple[Pause, ...]
    kills: tuple[Kill, ...]
    takeovers_s: tuple[dict[int, float], ...]
    session_s: float
    load_behind_ms_max: float


def gaps_ms(times_s: Sequence[float], begin_s: float, end_s: float) -> list[float]:
    """Returns times between neighbours, from the last before `begin_s` to the first after
    `end_s`.
    """
    return [
        (later - earlier) * 1_000
        for earlier, later in pairwise(times_s)
        if later > begin_s and earlier < end_s
    ]


def calm(times: Times, baselines_s: Iterable[tuple[float, float]]) -> Spread | None:
    """Returns how long the times between answers of a partition are in the baselines; None without
    any.
    """
    spans = tuple(baselines_s)
    return spread(
        gap
        for each in times.values()
        for begin_s, end_s in spans
        for gap in gaps_ms(each, begin_s, end_s)
    )


def pause(change: Change, times: Times, calm_p99_ms: float) -> Pause:
    """Returns what a change cost the partitions that stayed, and those that moved."""
    return Pause(
        change=change,
        pause_ms=_longest_ms(change, times, change.stayed) - calm_p99_ms,
        moving_ms=_longest_ms(change, times, change.moved),
    )


def _longest_ms(change: Change, times: Times, partitions: Sequence[int]) -> float:
    gaps = [
        gap
        for each in partitions
        for gap in gaps_ms(times.get(each, ()), change.began_s, change.ended_s)
    ]
    return max(gaps, default=0.0)


def took_over_s(kill: Kill, times: Times, *, in_flight_s: float = 0.2) -> dict[int, float]:
    """Returns how long after the kill each partition of the dead went on; infinity where it did
    not.

    Answers within `in_flight_s` of the kill were committed by the dead.
    """
    return {
        each: min(
            (at_s for at_s in times.get(each, ()) if at_s > kill.killed_s + in_flight_s),
            default=float("inf"),
        )
        - kill.killed_s
        for each in kill.partitions
    }


def promises(result: RebalanceResult) -> dict[str, bool]:
    """Returns what was promised, and whether it held."""
    longest_s = result.session_s + TAKEOVER_BEYOND_SESSION_S
    found = {
        "no gap: each query has an answer": not result.books.missing and not result.books.other,
        "no duplicate: no query has two": not result.books.duplicates,
        "in each change, partitions stayed and others moved": all(
            each.change.stayed and each.change.moved for each in result.pauses
        ),
        f"retained partitions pause under {PAUSE_MS_MAX:g} ms beyond the baseline's p99": bool(
            result.pauses
        )
        and all(each.pause_ms < PAUSE_MS_MAX for each in result.pauses),
    }
    if result.kills:
        found[f"takeover after a kill in a transaction within {longest_s:g} s"] = all(
            took_s <= longest_s for each in result.takeovers_s for took_s in each.values()
        )
    return found

"""The run of `carpool bench rebalance`: warm-up, changes, kills, table, report."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from bench.core.services_run import begin_run
from bench.reliability.cli import RebalanceOptions
from bench.reliability.rebalance.member_group import MemberGroup, open_group
from bench.reliability.rebalance.outcome import (
    Change,
    Kill,
    RebalanceResult,
    baseline,
    pause,
    promises,
    took_over_s,
)
from carpool.errors import CarpoolError
from carpool.testing.kafka import SESSION_TIMEOUT_MS

FIRST, SECOND, THIRD = "generator-1", "generator-2", "generator-3"
CHANGES = ((SECOND, True), (THIRD, True), (THIRD, False), (SECOND, False))
"""The changes of a round: a member, and whether it joins or leaves."""

SESSION_S = SESSION_TIMEOUT_MS / 1_000
AFTER_KILL_S = SESSION_S + 6.0


def run(options: RebalanceOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Blocks for minutes.

    Raises `CarpoolError`.
    """
    run = begin_run("rebalance", options)
    rate_per_s = options.rate_per_s
    with open_group(run.folder, members=3, rate_per_s=rate_per_s, settings=run.settings) as group:
        result = measure(group, options, run.note)
    return run.finish(
        lambda console: print_result(console, result), promises=promises(result), results=result
    )


def measure(
    group: MemberGroup, options: RebalanceOptions, note: Callable[[str], None]
) -> RebalanceResult:
    """Lets members join, leave and die; returns the cost. Blocks."""
    group.prepare(FIRST)
    group.join(FIRST)
    group.wait_assigned(FIRST)
    group.load.start()
    spans_s: list[tuple[float, float]] = []
    changes: list[Change] = []
    for number in range(1 - options.warm_up, options.rounds + 1):
        note(f"round {number} of {options.rounds}" if number > 0 else "warm-up")
        group.prepare(SECOND, THIRD)
        time.sleep(1)
        began_s = time.time()
        time.sleep(options.phase_s)
        span_s = (began_s, time.time())
        found = [
            group.change(name, joins=joins, phase_s=options.phase_s) for name, joins in CHANGES
        ]
        if number > 0:
            spans_s.append(span_s)
            changes += found
    kills = []
    for number in range(options.kills):
        note(f"kill {number + 1} of {options.kills}")
        kills.append(_kill(group, options.phase_s))
    accounting = group.account()
    times = group.answered_s()
    baseline_ms = baseline(times, spans_s)
    if baseline_ms is None:
        raise CarpoolError("nothing was answered in the baseline: see the members' logs")
    return RebalanceResult(
        accounting=accounting,
        baseline_ms=baseline_ms,
        pauses=tuple(pause(each, times, baseline_ms.p99) for each in changes),
        kills=tuple(kills),
        takeovers_s=tuple(took_over_s(each, times) for each in kills),
        session_s=SESSION_S,
        load_behind_ms_max=group.load.behind_ms_max,
    )


def _kill(group: MemberGroup, settle_s: float) -> Kill:
    group.prepare(SECOND)
    group.join(SECOND)
    group.wait_assigned(SECOND)
    time.sleep(settle_s)
    found = group.kill_in_transaction(SECOND)
    time.sleep(AFTER_KILL_S)
    return found


def print_result(console: Console, result: RebalanceResult) -> None:
    """Prints the pauses and the takeovers."""
    if (found := result.baseline_ms) is not None:
        console.print(
            f"baseline: between two answers of a partition p50 {found.p50:.0f}, p99 "
            f"{found.p99:.0f}, max {found.max:.0f} ms; {result.accounting.published:,} queries; "
            f"the load was late by {result.load_behind_ms_max:.0f} ms at most"
        )
    table = Table(
        *("change", "stay", "pause beyond p99, ms", "move", "longest gap of these, ms"),
        title="Members that join and leave",
    )
    for each in result.pauses:
        change = each.change
        table.add_row(
            *(change.what, str(len(change.stayed)), f"{each.pause_ms:.0f}"),
            *(str(len(change.moved)), f"{each.moving_ms:.0f}"),
        )
    console.print(table)
    for kill, took_s in zip(result.kills, result.takeovers_s, strict=True):
        times = ", ".join(f"{partition}: {seconds:.2f}" for partition, seconds in took_s.items())
        console.print(
            f"killed with {len(kill.partitions)} partitions; s until each was answered: {times}"
        )

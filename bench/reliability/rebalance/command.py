"""What `carpool bench rebalance` does: warm-up, changes, kills, the table, the report."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.core.machine import this_machine
from bench.core.made_up import kafka_report, require_kafka
from bench.core.report import print_promises, write_report
from bench.reliability.rebalance.outcome import (
    Change,
    Kill,
    RebalanceResult,
    calm,
    pause,
    promises,
    took_over_s,
)
from bench.reliability.rebalance.rig import Rig, open_rig
from bench.services.commands import parse_settings
from carpool.errors import CarpoolError
from carpool.testing.kafka import SESSION_TIMEOUT_MS

FIRST, SECOND, THIRD = "generator-1", "generator-2", "generator-3"
CHANGES = ((SECOND, True), (THIRD, True), (THIRD, False), (SECOND, False))
SESSION_S = SESSION_TIMEOUT_MS / 1_000
AFTER_KILL_S = SESSION_S + 6.0

Tell = Callable[[str], None]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. Seconds of load after each change and of each baseline; `settings`:
    SECTION.NAME=VALUE each.
    """

    rate_per_s: float
    phase_s: float
    rounds: int
    warm_up: int
    kills: int
    settings: tuple[str, ...]


def run(options: Options, work: Path, json_file: Path | None) -> bool:
    """Runs the benchmark in the folder `work`; returns whether its promises held. Blocks for
    minutes. Raises `CarpoolError`.
    """
    require_kafka()
    started_s, machine = time.time(), this_machine()
    notes = Console(stderr=True, highlight=False)
    folder = (work / "rebalance").resolve()
    settings = parse_settings(options.settings)
    notes.print(f"logs of members: {folder}")
    with open_rig(folder, members=3, rate_per_s=options.rate_per_s, settings=settings) as rig:
        result = measure(rig, options, notes.print)
    report = kafka_report(
        "rebalance",
        started_s=started_s,
        machine=machine,
        index=None,
        settings=msgspec.to_builtins(options) | {"services": settings},
        promises=promises(result),
        results=result,
    )
    if json_file is not None:
        write_report(report, json_file)
    console = Console(file=sys.stderr if str(json_file) == "-" else sys.stdout, highlight=False)
    print_result(console, result)
    print_promises(console, report.promises)
    return report.holds


def measure(rig: Rig, options: Options, tell: Tell) -> RebalanceResult:
    """Lets members come, go and die; returns what it cost. Blocks."""
    rig.prepare(FIRST)
    rig.let_in(FIRST)
    rig.await_share(FIRST)
    rig.load.start()
    baselines_s: list[tuple[float, float]] = []
    changes: list[Change] = []
    for number in range(options.warm_up + options.rounds):
        is_measured = number >= options.warm_up
        tell(
            f"round {number + 1 - options.warm_up} of {options.rounds}"
            if is_measured
            else "warm-up"
        )
        rig.prepare(SECOND, THIRD)
        time.sleep(1)
        began_s = time.time()
        time.sleep(options.phase_s)
        if is_measured:
            baselines_s.append((began_s, time.time()))
        found = [rig.change(name, comes=comes, phase_s=options.phase_s) for name, comes in CHANGES]
        changes += found if is_measured else []
    kills = []
    for number in range(options.kills):
        tell(f"kill {number + 1} of {options.kills}")
        kills.append(_kill(rig, options.phase_s))
    books = rig.close_books()
    times = rig.answered_s()
    calm_ms = calm(times, baselines_s)
    if calm_ms is None:
        raise CarpoolError("nothing was answered in the baseline: see the members' logs")
    return RebalanceResult(
        books=books,
        calm_ms=calm_ms,
        pauses=tuple(pause(each, times, calm_ms.p99) for each in changes),
        kills=tuple(kills),
        takeovers_s=tuple(took_over_s(each, times) for each in kills),
        session_s=SESSION_S,
        load_behind_ms_max=rig.load.behind_ms_max,
    )


def _kill(rig: Rig, settle_s: float) -> Kill:
    rig.prepare(SECOND)
    rig.let_in(SECOND)
    rig.await_share(SECOND)
    time.sleep(settle_s)
    found = rig.kill_in_transaction(SECOND)
    time.sleep(AFTER_KILL_S)
    return found


def print_result(console: Console, result: RebalanceResult) -> None:
    """Prints the pauses and the takeovers."""
    calm_ms = result.calm_ms
    if calm_ms is not None:
        console.print(
            f"baseline: between two answers of a partition p50 {calm_ms.p50:.0f}, p99 "
            f"{calm_ms.p99:.0f}, max {calm_ms.max:.0f} ms; {result.books.published:,} queries; the "
            f"load was late by {result.load_behind_ms_max:.0f} ms at most"
        )
    table = Table(
        "change",
        "stay",
        "pause beyond p99, ms",
        "polls held up, ms",
        "move",
        "longest gap of these, ms",
        title="Members that come and go",
    )
    for each in result.pauses:
        held_up = ", ".join(
            f"{name[-1]}: {ms:.0f}" for name, ms in each.change.rebalance_ms.items()
        )
        table.add_row(
            each.change.what,
            str(len(each.change.stayed)),
            f"{each.pause_ms:.0f}",
            held_up,
            str(len(each.change.moved)),
            f"{each.moving_ms:.0f}",
        )
    console.print(table)
    for kill, took_s in zip(result.kills, result.takeovers_s, strict=True):
        times = ", ".join(f"{partition}: {seconds:.2f}" for partition, seconds in took_s.items())
        console.print(
            f"killed with {len(kill.partitions)} partitions; s until each went on: {times}"
        )

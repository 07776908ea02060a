"""What `carpool bench chaos` does: the plan, the run, the verdict, the report."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.core.machine import this_machine
from bench.core.made_up import kafka_report, made_up_index, made_up_questions, require_kafka
from bench.core.report import print_promises, write_report
from bench.core.spread import Spread, spread
from bench.reliability.chaos.books import fault_lines
from bench.reliability.chaos.plan import in_transaction_min, plan_strikes
from bench.reliability.chaos.run import ChaosRun, broker_names, members, run_chaos
from bench.reliability.chaos.strikes import quiet_after_s
from bench.services.commands import parse_settings

BROKERS = 3
TIME_MAX_S = 900.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. `minutes`: over which the questions are published; `settings`:
    SECTION.NAME=VALUE each.
    """

    queries: int
    kills: int
    seed: int
    minutes: float
    settings: tuple[str, ...]


class ChaosResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it, added up. Times are seconds.

    `back_after_s`: from a strike until the process was up again, by name of the process;
    `quiet_after_s`: the longest time without an answer after a strike, by its kind.
    """

    run: ChaosRun
    struck_by_kind: dict[str, int]
    in_transaction: int
    in_transaction_with_offsets: int
    back_after_s: dict[str, Spread]
    quiet_after_s: dict[str, Spread]


def run(options: Options, work: Path, json_file: Path | None) -> bool:
    """Runs the benchmark in the folder `work`; returns whether its promises held. Blocks for
    minutes. Raises `CarpoolError`.
    """
    require_kafka()
    started_s, machine = time.time(), this_machine()
    notes = Console(stderr=True, highlight=False)
    folder = (work / "chaos").resolve()
    index = made_up_index(folder)
    settings = parse_settings(options.settings)
    duration_s = options.minutes * 60
    plan = plan_strikes(
        options.kills,
        duration_s=duration_s,
        seed=options.seed,
        members=members(),
        brokers=broker_names(BROKERS),
    )
    notes.print(f"logs of services: {folder}")
    result = summed_up(
        run_chaos(
            index,
            made_up_questions(options.queries),
            plan,
            rate_per_s=options.queries / duration_s,
            seed=options.seed,
            folder=folder,
            settings=settings,
            tell=notes.print,
        )
    )
    report = kafka_report(
        "chaos",
        started_s=started_s,
        machine=machine,
        index=index,
        settings=msgspec.to_builtins(options) | {"services": settings, "brokers": BROKERS},
        promises=promises(result, kills=options.kills),
        results=result,
    )
    if json_file is not None:
        write_report(report, json_file)
    console = Console(file=sys.stderr if str(json_file) == "-" else sys.stdout, highlight=False)
    print_chaos(console, result)
    print_promises(console, report.promises)
    return report.holds


def summed_up(run: ChaosRun) -> ChaosResult:
    """Returns the result of a run."""
    inside = [struck for struck in run.struck if struck.is_in_transaction]
    return ChaosResult(
        run=msgspec.structs.replace(run, answers_s=()),  # told by the times between them
        struck_by_kind=dict(sorted(Counter(struck.kind for struck in run.struck).items())),
        in_transaction=len(inside),
        in_transaction_with_offsets=sum(
            bool(each.transaction and each.transaction.holds_offsets) for each in inside
        ),
        back_after_s=_spreads(run.back_after_s),
        quiet_after_s=_spreads(quiet_after_s(run.struck, run.answers_s)),
    )


def promises(result: ChaosResult, *, kills: int) -> dict[str, bool]:
    """Returns what was promised, and whether it held."""
    books, inside = result.run.books, in_transaction_min(kills)
    return {
        "nothing lost: every question has a terminal answer": not (books.lost or books.unpublished),
        "nothing twice, in any topic": not (
            books.published_twice or any(books.duplicates.values())
        ),
        "nothing that nobody asked": not books.foreign,
        "no transaction is left open": not result.run.open_at_end,
        f"{kills} strikes, each with work in flight and progress since the last": len(
            result.run.struck
        )
        >= kills,
        f"{inside} or more kills inside an open transaction": result.in_transaction >= inside,
        f"done within {TIME_MAX_S / 60:g} minutes": result.run.took_s <= TIME_MAX_S,
    }


def print_chaos(console: Console, result: ChaosResult) -> None:
    """Prints what happened and what came of it."""
    run, books = result.run, result.run.books
    facts = Table("", "", title="Chaos", show_header=False)
    rows: dict[str, Any] = {
        "questions published": f"{books.published:,} in {run.load.duration_s:.0f} s; all answered "
        f"after {run.took_s:.0f} s",
        "answers by status": _counts(books.statuses),
        "lost": books.lost + books.unpublished,
        "twice, by topic": _counts(books.duplicates),
        "sent round again by a service": books.reentered,
        "strikes by kind": _counts(result.struck_by_kind),
        "kills inside an open transaction": f"{result.in_transaction}, "
        f"{result.in_transaction_with_offsets} of them with offsets",
        "strikes that never counted": len(run.not_struck),
        "ended by themselves, and were started again": _counts(
            Counter(each.name for each in run.ended)
        ),
        **{
            metric.removeprefix("carpool_"): _counts(counts)
            for metric, counts in run.counters.items()
        },
    }
    for name, value in rows.items():
        facts.add_row(name, str(value))
    console.print(facts)
    times = Table("seconds", "times", "p50", "p99", "max", title="Recovery")
    for title, spreads in (
        ("back up", result.back_after_s),
        ("no answer after", result.quiet_after_s),
    ):
        for name, found in spreads.items():
            times.add_row(
                f"{title}: {name}",
                str(found.count),
                *(f"{each:.1f}" for each in (found.p50, found.p99, found.max)),
            )
    console.print(times)
    for each in run.behind:
        place = f"{each.topic}[{each.partition}]"
        console.print(
            f"  [red]{each.group} committed {each.committed} of {each.end} in {place} "
            f"({each.metadata})[/]"
        )
    for line in fault_lines(books.faults):
        console.print(f"  [red]{line}[/]")


def _counts(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {count:g}" for name, count in counts.items()) or "none"


def _spreads(values: Mapping[Any, Sequence[float]]) -> dict[str, Spread]:
    return {
        str(name): found
        for name, each in sorted(values.items())
        if (found := spread(each)) is not None
    }

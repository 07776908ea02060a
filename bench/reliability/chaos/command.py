"""The run of `carpool bench chaos`: plan, run, promises, tables, report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.core.services_run import begin_run
from bench.core.spread import Spread, spread
from bench.data.made_up import made_up_index, made_up_questions
from bench.reliability.chaos.faults import quiet_after_s
from bench.reliability.chaos.plan import in_transaction_min, plan_faults
from bench.reliability.chaos.run import ChaosRun, broker_names, members, run_chaos
from bench.reliability.cli import ChaosOptions

BROKERS = 3
TIME_MAX_S = 900.0


class ChaosResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result. Times are seconds.

    `back_after_s`: from a fault until the process was up again, by process. `quiet_after_s`: the
    longest time without an answer after a fault, by kind of fault.
    """

    run: ChaosRun
    faults_by_kind: dict[str, int]
    in_transaction: int
    in_transaction_with_offsets: int
    back_after_s: dict[str, Spread]
    quiet_after_s: dict[str, Spread]


def run(options: ChaosOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Blocks for minutes.

    Raises `CarpoolError`.
    """
    run = begin_run("chaos", options)
    index = made_up_index(run.folder)
    duration_s = options.minutes * 60
    plan = plan_faults(
        options.kills,
        duration_s=duration_s,
        seed=options.seed,
        members=members(),
        brokers=broker_names(BROKERS),
    )
    result = summarise(
        run_chaos(
            index,
            made_up_questions(options.queries),
            plan,
            rate_per_s=options.queries / duration_s,
            seed=options.seed,
            folder=run.folder,
            settings=run.settings,
            note=run.note,
        )
    )
    return run.finish(
        lambda console: print_chaos(console, result),
        settings={"brokers": BROKERS},
        promises=promises(result, kills=options.kills),
        results=result,
        index=index.facts,
    )


def summarise(run: ChaosRun) -> ChaosResult:
    """Returns the result of a run."""
    inside = [fault for fault in run.injected if fault.is_in_transaction]
    return ChaosResult(
        # The times of single answers are replaced by the longest gaps.
        run=msgspec.structs.replace(run, answers_s=()),
        faults_by_kind=dict(sorted(Counter(fault.kind for fault in run.injected).items())),
        in_transaction=len(inside),
        in_transaction_with_offsets=sum(
            bool(each.transaction and each.transaction.holds_offsets) for each in inside
        ),
        back_after_s=_spreads(run.back_after_s),
        quiet_after_s=_spreads(quiet_after_s(run.injected, run.answers_s)),
    )


def promises(result: ChaosResult, *, kills: int) -> dict[str, bool]:
    """Returns each promise and whether it was kept."""
    run, audit, inside = result.run, result.run.audit, in_transaction_min(kills)
    is_once = not (audit.published_twice or any(audit.duplicates.values()))
    return {
        "nothing lost: every question has a terminal answer": not (audit.lost or audit.unpublished),
        "nothing twice, in any topic": is_once,
        "no record of a question that was not published": not audit.foreign,
        "no transaction is left open": not run.open_at_end,
        f"{kills} faults, each with work in flight and progress since the last": len(run.injected)
        >= kills,
        f"{inside} or more kills inside an open transaction": result.in_transaction >= inside,
        f"done within {TIME_MAX_S / 60:g} minutes": run.took_s <= TIME_MAX_S,
    }


def print_chaos(console: Console, result: ChaosResult) -> None:
    """Prints the tables of a result."""
    run, audit = result.run, result.run.audit
    facts = Table("", "", title="Chaos", show_header=False)
    rows: dict[str, Any] = {
        "questions published": f"{audit.published:,} in {run.load.duration_s:.0f} s; all answered "
        f"after {run.took_s:.0f} s",
        "answers by status": _counts(audit.statuses),
        "lost": audit.lost + audit.unpublished,
        "twice, by topic": _counts(audit.duplicates),
        "published again by a service": audit.reentered,
        "faults by kind": _counts(result.faults_by_kind),
        "kills inside an open transaction": f"{result.in_transaction}, "
        f"{result.in_transaction_with_offsets} of them with offsets",
        "faults that never counted": len(run.not_injected),
        "ended by themselves, started again": _counts(Counter(each.name for each in run.exits)),
    }
    for name, value in rows.items():
        facts.add_row(name, str(value))
    console.print(facts)
    times = Table("seconds", "times", "p50", "p99", "max", title="Recovery")
    spreads = {f"back up: {name}": found for name, found in result.back_after_s.items()}
    spreads |= {f"no answer after: {kind}": found for kind, found in result.quiet_after_s.items()}
    for name, found in spreads.items():
        seconds = (f"{each:.1f}" for each in (found.p50, found.p99, found.max))
        times.add_row(name, str(found.count), *seconds)
    console.print(times)
    for violation in audit.violations:
        console.print(f"  {violation.line()}", style="red")


def _counts(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {count:g}" for name, count in counts.items()) or "none"


def _spreads(values: Mapping[Any, Sequence[float]]) -> dict[str, Spread]:
    found = {str(name): spread(each) for name, each in sorted(values.items())}
    return {name: each for name, each in found.items() if each is not None}

"""The run of `carpool bench chaos`: plan, run, promises, tables, report."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import structlog
from rich.console import Console
from rich.table import Table

from bench.core.services_run import begin_run
from bench.core.spread import Spread, spread
from bench.core.stack import member_names
from bench.data.index import BenchIndex
from bench.data.made_up import made_up_index
from bench.reliability.chaos.asked import drawn_questions
from bench.reliability.chaos.faults import quiet_after_s
from bench.reliability.chaos.live import broker_names, members
from bench.reliability.chaos.mutants import MUTANTS, Mutant, patched_packages
from bench.reliability.chaos.plan import (
    LLM_SHARES,
    MEMBERS,
    NETWORK_SHARES,
    OF_LLM,
    OF_NETWORK,
    OF_STATES,
    STATE_SHARES,
    PlannedFault,
    in_transaction_min,
    interleaved,
    plan_faults,
)
from bench.reliability.chaos.run import (
    BROKERS,
    ChaosPlan,
    ChaosRun,
    run_chaos,
)
from bench.reliability.cli import ChaosOptions
from carpool.settings import environment_name

TIME_MAX_S = 1_200.0
MUTANT_STALLED_S = 40.0
LLM_KILL_EACH = 5


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
    """Runs the benchmark; returns whether it is as it should be. Blocks for minutes.

    That is: every promise was kept, or with a mutant, a promise about the data was broken. Raises
    `CarpoolError`.
    """
    mutant = None if options.mutant is None else MUTANTS[options.mutant]
    run = begin_run("chaos", options)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    index = made_up_index(run.folder)
    with ExitStack() as opened:
        is_patched = mutant is not None and not options.shipped
        plan = _plan(options, index, run.settings) if mutant is None else mutant_plan(mutant, index)
        if mutant is not None and is_patched:
            packages = opened.enter_context(patched_packages(mutant))
            plan = msgspec.structs.replace(plan, python_path=packages)
            run.note(f"mutant {mutant.number}: {mutant.what}")
        result = summarise(run_chaos(index, plan, folder=run.folder, note=run.note))
    kept = promises_of_data(result, plan)
    if mutant is not None and is_patched:
        broken = [promise for promise, is_kept in kept.items() if not is_kept]
        run.note(f"mutant {mutant.number} broke: {'; '.join(broken) or 'no promise'}")
        promises = {f"mutant {mutant.number} is found: {mutant.what}": bool(broken)}
    else:
        promises = kept | promises_of_run(result, plan)
    return run.finish(
        lambda console: print_chaos(console, result),
        settings={"brokers": BROKERS},
        promises=promises,
        results=result,
        index=index.facts,
    )


def _plan(options: ChaosOptions, index: BenchIndex, settings: dict[str, str]) -> ChaosPlan:
    duration_s, names = options.minutes * 60, broker_names(BROKERS)
    return ChaosPlan(
        asked=drawn_questions(
            index,
            options.queries,
            options.seed,
            repeat_share=options.repeat_share,
            cancel_share=options.cancel_share,
        ),
        faults=interleaved(
            plan_faults(
                options.kills,
                duration_s=duration_s,
                seed=options.seed,
                members=members(),
                brokers=names,
            ),
            plan_faults(
                options.network,
                shares=NETWORK_SHARES,
                duration_s=duration_s,
                seed=options.seed,
                members=members(),
                brokers=names,
            ),
            plan_faults(
                llm_kills(options.kills) if options.llm_servers > 1 else 0,
                shares=LLM_SHARES,
                duration_s=duration_s,
                seed=options.seed,
                members=member_names("llm", options.llm_servers),
                brokers=names,
            ),
            plan_faults(
                options.states,
                shares=STATE_SHARES,
                duration_s=duration_s,
                seed=options.seed,
                members=member_names("llm", options.llm_servers),
                brokers=names,
            ),
        ),
        rate_per_s=options.queries / duration_s,
        seed=options.seed,
        settings={environment_name("kafka", "lanes"): str(MEMBERS), **settings},
        llm_servers=options.llm_servers,
        has_drafts=True,
    )


def llm_kills(kills: int) -> int:
    """Returns how often one of several LLM servers is killed, beside so many other kills."""
    return max(1, kills // LLM_KILL_EACH)


def mutant_plan(mutant: Mutant, index: BenchIndex) -> ChaosPlan:
    """Returns the load and the faults that find a mutant."""
    return ChaosPlan(
        asked=drawn_questions(
            index, mutant.queries, mutant.seed, broken_within=0, batch_share=mutant.batch_share
        ),
        faults=plan_faults(
            mutant.faults,
            shares=mutant.shares,
            duration_s=mutant.seconds,
            seed=mutant.seed,
            members=mutant.members or members(),
            brokers=broker_names(BROKERS),
            lasts_s=mutant.lasts_s,
        ),
        rate_per_s=mutant.queries / mutant.seconds,
        seed=mutant.seed,
        settings=mutant.settings,
        wait_s_max=mutant.wait_s_max,
        stalled_s=MUTANT_STALLED_S,
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


def promises_of_data(result: ChaosResult, plan: ChaosPlan) -> dict[str, bool]:
    """Returns what must hold whatever is injected, and whether it was kept."""
    run, audit = result.run, result.run.audit
    answers = audit.answers
    # The client's library may write a record twice when the leader of a partition changes
    # (confluentinc/librdkafka, issue 4953).
    return {
        "nothing lost: every question has a terminal answer": not (audit.lost or audit.unpublished),
        "nothing twice, in any topic that a service writes": audit.is_once,
        "the client wrote at most one question in 1,000 twice": audit.published_twice
        <= max(1, audit.published // 1_000),
        "no record of a question that was not published": not audit.foreign,
        "every lane scanned its clusters for every scattered query": not audit.scans_missing,
        "no answer failed but those that the load made fail, or withdrew": not (
            answers.failed_wrongly
        ),
        "every answer has the passages of a run without faults": not answers.other_passages,
        "every answer has the text of its own question": not answers.other_texts,
        "an id that was asked again got its answer again": not answers.generated_again,
        "every failed question became one dead letter, and was replayed once": audit.letters
        == audit.replays
        == answers.failed_as_meant,
        "every committed offset is at the end of its partition": not run.behind,
        "every generated answer has an LLM call, and a fault repeats those of one second at most": (
            0 <= run.calls_repeated <= run.calls_allowed
        ),
        "no transaction is left open": not run.open_at_end,
    } | (
        {}
        if plan.wait_s_max is None
        else {
            f"no question waited longer than {plan.wait_s_max:g} s": answers.slowest_s
            <= plan.wait_s_max
        }
    )


def promises_of_run(result: ChaosResult, plan: ChaosPlan) -> dict[str, bool]:
    """Returns what the run must contain, and whether it did."""
    run = result.run
    planned = Counter(_sort_of(fault) for fault in plan.faults)
    left = Counter(_sort_of(fault) for fault in run.not_injected)
    answers, asked = run.audit.answers, plan.asked.questions
    inside = in_transaction_min(planned["kills and pauses"])
    is_killing = any(fault.kind == "kill in a transaction" for fault in plan.faults)
    return {
        f"{count} {what}, each with work in flight and answers since the last": not left[what]
        for what, count in sorted(planned.items())
    } | {
        f"{inside} or more kills inside an open transaction": result.in_transaction >= inside
        or not is_killing,
        "some answers were given again to an equal prompt": answers.reused > 0
        or not asked.has_equal_texts,
        "some questions ended as withdrawn": answers.cancelled > 0 or not asked.withdrawn,
        "some prefixes were warmed from drafts": run.calls.warm_ups > 0 or not plan.has_drafts,
        f"done within {TIME_MAX_S / 60:g} minutes": run.took_s <= TIME_MAX_S,
    }


def _sort_of(fault: PlannedFault) -> str:
    if fault.kind in OF_LLM:
        return "kills of LLM servers"
    if fault.kind in OF_STATES:
        return "changes of the deployment"
    return "network faults" if fault.kind in OF_NETWORK else "kills and pauses"


def print_chaos(console: Console, result: ChaosResult) -> None:
    """Prints the tables of a result."""
    run, audit = result.run, result.run.audit
    answers = audit.answers
    facts = Table("", "", title="Chaos", show_header=False)
    rows: dict[str, Any] = {
        "questions published": f"{audit.published:,}; all answered after {run.took_s:.0f} s",
        "answers by status": _counts(answers.statuses),
        "lost; removed from a topic": f"{audit.lost + audit.unpublished}; {audit.removed}",
        "twice, by topic": _counts(audit.duplicates),
        "questions that the client wrote twice": audit.published_twice,
        "scans for other lanes": audit.scans_owed,
        "retries; dead letters; replays": f"{audit.retries}; {audit.letters}; {audit.replays}",
        "answers that repeat an earlier one": f"{answers.replayed}, {answers.reused} of another "
        "question with an equal prompt",
        "withdrawn in time": answers.cancelled,
        "failed without a cause": answers.failed_wrongly,
        "other passages": answers.other_passages,
        "texts of other questions": answers.other_texts,
        "generated again": answers.generated_again,
        "longest wait for an answer": f"{answers.slowest_s:.1f} s",
        "offsets behind": _counts(run.behind),
        "LLM calls": f"{run.calls.started:,}; {run.calls.faulted:,} failed as the load wanted; "
        f"{run.calls_repeated:,} repeated, {run.calls_allowed:,} allowed",
        "warm-ups that ended": run.calls.warm_ups,
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

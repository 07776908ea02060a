"""The run of `carpool bench chaos`: plan, run, promises, report."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import ExitStack

import msgspec
import structlog

from bench.core.run import begin_services
from bench.core.stack import member_names
from bench.data.index import BenchIndex
from bench.data.made_up import made_up_index
from bench.reliability.chaos.live import BROKERS, INSTANCES
from bench.reliability.chaos.mutants import MUTANTS, Mutant, patched_packages
from bench.reliability.chaos.plan import MEMBERS, plan_faults, shares_of
from bench.reliability.chaos.questions import Shares, drawn_questions
from bench.reliability.chaos.run import ChaosPlan, ChaosRun, run_chaos
from bench.reliability.options import ChaosOptions
from carpool.settings import environment_name

MINUTES_MAX = 20
MUTANT_STALLED_S = 40.0
LLM_KILL_EACH = 5
"""One kill of an LLM server for so many of other processes."""
LLM_SERVERS = member_names("llm", 2)
SHARES = Shares(repeat=0.2, cancel=0.05)


def run(options: ChaosOptions) -> bool:
    """Runs the benchmark; returns whether it is as it should be. Blocks for minutes.

    That is: every promise was kept, or with a mutant, a promise about the data was broken. Raises
    `CarpoolError`.
    """
    mutant = None if options.mutant is None else MUTANTS[options.mutant]
    run = begin_services("chaos", options)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    index = made_up_index(run.folder)
    is_patched = mutant is not None and not options.shipped
    with ExitStack() as opened:
        plan = _plan(options, index, run.settings) if mutant is None else mutant_plan(mutant, index)
        if mutant is not None and is_patched:
            packages = opened.enter_context(patched_packages(mutant))
            plan = msgspec.structs.replace(plan, python_path=packages)
            run.note(f"mutant {mutant.number}: {mutant.what}")
        result = run_chaos(index, plan, folder=run.folder, note=run.note)
    promises = promises_of_data(result, plan)
    if mutant is not None and is_patched:
        broken = [promise for promise, is_kept in promises.items() if not is_kept]
        run.note(f"mutant {mutant.number} broke: {'; '.join(broken) or 'no promise'}")
        promises = {f"mutant {mutant.number} is found: {mutant.what}": bool(broken)}
    else:
        promises |= promises_of_run(result, plan)
    return run.finish({"chaos": result}, promises=promises, results=result, index=index.facts)


def _plan(options: ChaosOptions, index: BenchIndex, settings: dict[str, str]) -> ChaosPlan:
    duration_s = options.minutes * 60
    counts = {
        "kills and pauses": options.kills,
        "network faults": options.network,
        "kills of LLM servers": max(1, options.kills // LLM_KILL_EACH),
        "changes of the deployment": options.states,
    }
    faults = [
        fault
        for sort, count in counts.items()
        for fault in plan_faults(
            count,
            shares_of(sort),
            duration_s=duration_s,
            seed=options.seed,
            victims={"members": INSTANCES, "brokers": BROKERS, "LLM servers": LLM_SERVERS},
        )
    ]
    questions, expected = drawn_questions(index, options.queries, options.seed, SHARES)
    return ChaosPlan(
        questions=questions,
        expected=expected,
        faults=tuple(sorted(faults, key=lambda each: each.at_s)),
        rate_per_s=options.queries / duration_s,
        seed=options.seed,
        settings={environment_name("kafka", "lanes"): str(MEMBERS), **settings},
        llm_servers=len(LLM_SERVERS),
        has_drafts=True,
    )


def mutant_plan(mutant: Mutant, index: BenchIndex) -> ChaosPlan:
    """Returns the load and the faults that find a mutant."""
    shares = Shares(broken_within=0, batch=mutant.batch_share)
    questions, expected = drawn_questions(index, mutant.queries, mutant.seed, shares)
    return ChaosPlan(
        questions=questions,
        expected=expected,
        faults=tuple(
            plan_faults(
                mutant.faults,
                mutant.shares,
                duration_s=mutant.seconds,
                seed=mutant.seed,
                victims={"members": mutant.members or INSTANCES, "brokers": BROKERS},
                lasts_s=mutant.lasts_s,
            )
        ),
        rate_per_s=mutant.queries / mutant.seconds,
        seed=mutant.seed,
        settings=mutant.settings,
        wait_s_max=mutant.wait_s_max,
        stalled_s=MUTANT_STALLED_S,
    )


def promises_of_data(run: ChaosRun, plan: ChaosPlan) -> dict[str, bool]:
    """Returns what must hold whatever is injected, and whether it was kept."""
    audit, wrong = run.audit, run.audit.wrong
    found = {
        "nothing lost: every question has a terminal answer": not (
            wrong["lost"] or wrong["unpublished"]
        ),
        "nothing twice, in any topic that a service writes": not any(
            count for what, count in wrong.items() if what.startswith("twice")
        ),
        # The client's library may write a record twice when the leader of a partition changes
        # (confluentinc/librdkafka, issue 4953).
        "the client wrote at most one question in 1,000 twice": wrong["published twice"]
        <= max(1, audit.published // 1_000),
        "no record of a question that was not published": not wrong["never published"],
        "every lane scanned its clusters for every scattered query": not wrong["scans missing"],
        "no answer failed but those that the load made fail, or withdrew": not wrong[
            "failed without a cause in the load"
        ],
        "every answer has the passages of a run without faults": not wrong[
            "other passages than without faults"
        ],
        "every answer has the text of its own question": not wrong[
            "another text than that of its question"
        ],
        "an id that was asked again got its answer again": not wrong["generated again"],
        "every failed question became one dead letter, and was replayed once": audit.letters
        == audit.replays
        == audit.failed_as_meant,
        "every committed offset is at the end of its partition": not run.behind,
        "every generated answer has an LLM call, and a fault repeats those of one second at most": (
            0 <= run.calls["repeated"] <= run.calls["allowed"]
        ),
        "no transaction is left open": not run.open_at_end,
    }
    if plan.wait_s_max is not None:
        found[f"no question waited longer than {plan.wait_s_max:g} s"] = (
            audit.slowest_s <= plan.wait_s_max
        )
    return found


def promises_of_run(run: ChaosRun, plan: ChaosPlan) -> dict[str, bool]:
    """Returns what the run must contain, and whether it did."""
    asked = plan.questions
    planned = Counter(fault.sort for fault in plan.faults)
    left = Counter(fault.sort for fault in run.not_injected)
    inside = max(1, planned["kills and pauses"] // 6)
    is_killing = any(fault.kind == "kill in a transaction" for fault in plan.faults)
    return {
        f"{count} {sort}, each with work in flight and answers since the last": not left[sort]
        for sort, count in sorted(planned.items())
    } | {
        f"{inside} or more kills inside an open transaction": run.kills_in_transaction >= inside
        or not is_killing,
        "some answers were given again to an equal prompt": run.audit.reused > 0
        or not asked.has_equal_texts,
        "some questions ended as withdrawn": run.audit.cancelled > 0 or not asked.withdrawn,
        "some prefixes were warmed from drafts": run.calls.get("warm_ups", 0) > 0
        or not plan.has_drafts,
        f"done within {MINUTES_MAX} minutes": run.took_s <= MINUTES_MAX * 60,
    }

"""The run of `carpool bench chaos`: plan, run, promises, report."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import structlog

from bench.core.run import ServicesRun
from bench.core.stack import SERVICES
from bench.data.index import BenchIndex
from bench.data.made_up import made_up_index
from bench.reliability.chaos import plan as planned
from bench.reliability.chaos.answers import AGAIN, FAILED, OTHER_PASSAGES, OTHER_TENANT
from bench.reliability.chaos.audit import NOT_FINISHED, OTHER_HEADERS
from bench.reliability.chaos.check_answer import OTHER_CITED, OTHER_TEXT
from bench.reliability.chaos.document_audit import (
    BEFORE_BOUND,
    LOST,
    NOT_NEAREST,
    OLD_TEXT,
    OTHER_VECTORS,
)
from bench.reliability.chaos.document_texts import of_index
from bench.reliability.chaos.live import BROKERS, INSTANCES, LLM_SERVERS, instances_of
from bench.reliability.chaos.mutants import MUTANTS, Mutant, patched_packages
from bench.reliability.chaos.questions import drawn_questions
from bench.reliability.chaos.run import WITH_INDEXER, ChaosPlan, ChaosRun, run_chaos
from bench.reliability.options import ChaosOptions
from carpool.settings import environment_name

TIMES_MAX = 2
"""How many times the time of its questions a run may take."""
LLM_KILL_EACH = 5
"""One kill of an LLM server for so many of other processes."""
AT_BASE_EACH = 6
"""One at a save or a swap of a base for so many of processes."""
CHANGES_PER_S = 12.0
"""Of documents."""
SEARCHED_MIN = 10
"""Bases that are searched in a run of ten minutes or more, after the first one."""
RIGHT = {
    "nothing lost: what was read and committed has a terminal answer": ("lost", "unpublished"),
    "nothing left: no question waits in a topic at the end": (NOT_FINISHED,),
    "no record of a question that was not published": ("never published",),
    "every record of a question has its key, correlation_id and reply_to": (OTHER_HEADERS,),
    "no answer failed but those that the load made fail or late, or withdrew": (FAILED,),
    "every answer, and every search of a workflow, has the passages of a run without faults": (
        OTHER_PASSAGES,
    ),
    "every answer has the text, and the steps, of its own question": (OTHER_TEXT,),
    "every citation and quote is of the text and the passages of its own answer": (OTHER_CITED,),
    "no tenant got the answer of another one": (OTHER_TENANT,),
    "every text is of the revision of its document at the position of its answer": (OLD_TEXT,),
    "questions on documents found the passages that were the nearest at this position": (
        NOT_NEAREST,
    ),
    "an answer after a change has a position that has it": (BEFORE_BOUND,),
    "no document and no change of one is lost": (LOST,),
    "each change has its record of vectors": (OTHER_VECTORS,),
    "an id that was asked again got its answer again": (AGAIN,),
}
"""What is promised, and what the audit calls wrong then."""


def run(options: ChaosOptions) -> bool:
    """With a mutant, a promise about the data must be broken: see `Mutant.breaks`."""
    mutant = None if options.mutant is None else MUTANTS[options.mutant]
    run = ServicesRun("chaos", options)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    has_documents = options.documents if mutant is None else mutant.document_share
    index = made_up_index(run.folder, more=of_index() if has_documents else {})
    with ExitStack() as opened:
        if mutant is None:
            plan = _plan(options, index, run.settings)
        else:
            run.note(f"mutant {mutant.number}: {mutant.what}")
            plan = _mutant_plan(mutant, index, opened.enter_context(patched_packages(mutant)))
        result = run_chaos(index, plan, folder=run.folder, note=run.note)
    promises = promises_of_data(result, plan)
    if mutant is None:
        promises |= promises_of_run(result, plan)
    else:
        broken = [promise for promise, is_kept in promises.items() if not is_kept]
        run.note(f"mutant {mutant.number} broke: {'; '.join(broken) or 'no promise'}")
        is_found = any(promise.startswith(mutant.breaks) for promise in broken)
        promises = {f"mutant {mutant.number} is found: {mutant.what}": is_found}
    return run.finish(
        {"chaos": {"found": result}}, promises=promises, results=result, index=index.facts
    )


def _plan(options: ChaosOptions, index: BenchIndex, settings: dict[str, str]) -> ChaosPlan:
    duration_s, has_documents = options.minutes * 60, options.documents > 0
    counts = {
        planned.KILLS: options.kills,
        planned.NETWORK: options.network,
        planned.LLM_KILLS: max(1, options.kills // LLM_KILL_EACH),
        planned.CHANGES: options.states,
        planned.AT_BASES: max(1, options.kills // AT_BASE_EACH) if has_documents else 0,
    }
    # Indexers are often idle, and then not hit: they are there twice.
    instances = instances_of((*WITH_INDEXER, "indexer") if has_documents else SERVICES)
    faults = [
        fault
        for sort, count in counts.items()
        for fault in planned.plan_faults(
            count,
            planned.shares_of(sort),
            duration_s=duration_s,
            seed=options.seed,
            victims=_victims(instances),
        )
        if not (has_documents and fault.kind == "newer index")  # that one has the first documents
    ]
    return ChaosPlan(
        questions=drawn_questions(
            index,
            options.queries,
            options.seed,
            document_share=options.documents,
            workflow_share=0.0 if has_documents else options.workflows,
        ),
        faults=tuple(sorted(faults, key=lambda each: each.at_s)),
        rate_per_s=options.queries / duration_s,
        seed=options.seed,
        settings={environment_name("kafka", "lanes"): str(planned.MEMBERS), **settings},
        changes_per_s=CHANGES_PER_S if has_documents else 0.0,
    )


def _victims(instances: Sequence[str]) -> dict[str, Sequence[str]]:
    return {
        "members": instances,
        "brokers": BROKERS,
        "LLM servers": LLM_SERVERS,
        "indexers": instances_of(["indexer"]),
        "searchers": instances_of(["searcher"]),
    }


def _mutant_plan(mutant: Mutant, index: BenchIndex, packages: Path) -> ChaosPlan:
    """Returns the load and the faults that find a mutant. `packages`: with its patch."""
    return ChaosPlan(
        questions=drawn_questions(
            index,
            mutant.queries,
            mutant.seed,
            batch_share=mutant.batch_share,
            workflow_share=mutant.workflow_share,
            document_share=mutant.document_share,
            is_plain=True,
        ),
        faults=tuple(
            planned.plan_faults(
                mutant.faults,
                mutant.shares,
                duration_s=mutant.seconds,
                seed=mutant.seed,
                victims=_victims(mutant.members or INSTANCES),
                lasts_s=mutant.lasts_s,
            )
        ),
        rate_per_s=mutant.queries / mutant.seconds,
        seed=mutant.seed,
        settings=mutant.settings,
        changes_per_s=CHANGES_PER_S if mutant.document_share else 0.0,
        wait_s_max=mutant.wait_s_max,
        packages=packages,
    )


def promises_of_data(run: ChaosRun, plan: ChaosPlan) -> dict[str, bool]:
    """Returns what must hold whatever is injected, and whether it was kept."""
    audit, documents = run.audit, run.documents.counts
    wrong = Counter(audit.wrong) + Counter(
        {what: len(places) for what, places in run.documents.wrong.items()}
    )
    found = {text: not any(wrong[what] for what in names) for text, names in RIGHT.items()} | {
        "nothing twice, and no finished step, in any topic that a service writes": not any(
            count for what, count in wrong.items() if what.startswith("twice")
        ),
        # The client's library may write a record twice when the leader of a partition changes
        # (confluentinc/librdkafka, issue 4953).
        "the client wrote at most one question in 1,000 twice": wrong["published twice"]
        <= max(1, audit.published // 1_000),
        "every failed question became one dead letter, and was replayed once": audit.letters
        == audit.replays
        == audit.statuses.get("failed", 0) - documents["stale"],
        "every document that was refused became one dead letter": documents["letters"]
        == documents["refused"],
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
    counts = Counter(fault.sort for fault in plan.faults)
    left = Counter(fault.sort for fault in run.not_injected)
    inside = max(1, counts[planned.KILLS] // 6)
    bases = min(SEARCHED_MIN, int(len(plan.questions) / plan.rate_per_s / 60))
    return {
        f"{count} {sort}, each with work in flight and answers since the last": not left[sort]
        for sort, count in sorted(counts.items())
    } | {
        f"{inside} or more kills inside an open transaction": run.kills_in_transaction >= inside,
        "some answers were given again to an equal prompt": run.audit.reused > 0,
        "some questions ended as withdrawn": "cancelled" in run.audit.statuses,
        "some questions were late": "expired" in run.audit.statuses,
        "some workflows were answered": run.audit.workflows > 0
        or not any(each.workflow for each in plan.questions),
        "some prefixes were warmed from drafts": run.calls.get("warm_ups", 0) > 0
        or plan.changes_per_s > 0,
        f"{bases} or more bases were searched after the first one": (
            run.documents.counts["bases searched"] > bases or not plan.changes_per_s
        ),
        f"done within {TIMES_MAX} times the time of its questions": (
            run.took_s <= TIMES_MAX * len(plan.questions) / plan.rate_per_s
        ),
    }

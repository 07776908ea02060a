"""`carpool bench priorities`: do batch work or one loud tenant make others wait?

The whole way without models. Every load is open: a question is sent at its time, and its time
counts from when it was due.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from bench.core.accounting import Accounting, answer_accounting
from bench.core.load import even, poisson
from bench.core.run import ServicesRun
from bench.core.session import SentLoad, Session, open_session
from bench.core.spread import Spread, spread
from bench.data.made_up import ENVIRONMENT, made_up_index, made_up_questions
from bench.services.options import PrioritiesOptions
from schemas.topics import ANSWERS

RATE_PER_S = 20.0
"""Of interactive questions."""
BATCH_RATE_PER_S = 4_000.0
LOUD_SHARE = 0.9
WARM_UP_SHARE = 5
"""The warm-up sends one batch question for so many that are measured."""
BATCH_SLOWDOWN_MAX = 2.0
TENANT_SLOWDOWN_MAX = 1.5


class ConditionResult(msgspec.Struct, frozen=True, kw_only=True):
    """Questions of one kind in one condition: ms from when each was due until it was answered."""

    total_ms: Spread | None
    accounting: Accounting


Conditions = Mapping[str, ConditionResult]


def promises_of(conditions: Conditions, batch_left: int) -> dict[str, bool]:
    """Returns each promise and whether it was kept.

    `batch_left`: batch questions without an answer when the last interactive one was sent. When it
    is 0, the backlog was too short to show anything.
    """
    batch = slowdown(conditions, "interactive alone", "interactive with batch")
    tenant = slowdown(conditions, "quiet tenant alone", "quiet tenant with a loud one")
    return {
        f"interactive p99 with batch at most {BATCH_SLOWDOWN_MAX:g}x": batch <= BATCH_SLOWDOWN_MAX,
        "batch questions were waiting all the time": batch_left > 0,
        f"other tenants' p99 with a loud one at most {TENANT_SLOWDOWN_MAX:g}x": tenant
        <= TENANT_SLOWDOWN_MAX,
        "each question has one answer": all(each.accounting.holds for each in conditions.values()),
    }


def slowdown(conditions: Conditions, alone: str, shared: str) -> float:
    """Returns the ratio of the p99s; infinity where nothing came back."""
    first, second = conditions[alone].total_ms, conditions[shared].total_ms
    return float("inf") if first is None or second is None else second.p99 / first.p99


def run(options: PrioritiesOptions) -> bool:
    run = ServicesRun("priorities", options)
    index = made_up_index(run.folder)
    run.settings.update({**ENVIRONMENT, "CARPOOL_GENERATOR_PARTIALS": "false", **run.settings})
    with open_session(index.dir, run.folder, run.settings, brokers=1) as session:
        conditions, batch = measure(session, options)
    return run.finish(
        {"priorities": conditions},
        promises=promises_of(conditions, batch["batch_left"]),
        results={"conditions": conditions, **batch},
        index=index.facts,
    )


def measure(session: Session, options: PrioritiesOptions) -> tuple[Conditions, dict[str, Any]]:
    """Warms up, until the broker's Java is compiled, and measures each condition. Blocks.

    Returns the batch questions too: those that were left, and how many were answered a second.
    """

    def batch_of(count: int) -> SentLoad:
        asked = made_up_questions(count, are_vectors=False)
        return session.send(asked, even(BATCH_RATE_PER_S), priority="batch")

    def send(rate_per_s: float, seconds: float, tenant: str | None = None) -> SentLoad:
        asked = made_up_questions(max(1, round(rate_per_s * seconds)), are_vectors=False)
        return session.send(asked, poisson(rate_per_s, 0), tenant=tenant)

    def answered(load: SentLoad) -> int:
        return session.recorder.seen((ANSWERS.name,), load.keys())

    def wait(load: SentLoad) -> ConditionResult:
        session.recorder.wait(load.keys(), settle_s=0.5)
        return ConditionResult(
            total_ms=spread(session.answered_ms(load).values()),
            accounting=answer_accounting(load, session.answers(load)),
        )

    found, seconds = dict[str, ConditionResult](), options.seconds
    loud_per_s = options.tenant_rate_per_s * LOUD_SHARE
    quiet_per_s = options.tenant_rate_per_s - loud_per_s
    first_batch = batch_of(max(1, options.batch // WARM_UP_SHARE))
    wait(send(RATE_PER_S, options.warm_up_s or seconds))
    wait(first_batch)
    found["interactive alone"] = wait(send(RATE_PER_S, seconds))
    batch = batch_of(options.batch)
    before = answered(batch)
    together = send(RATE_PER_S, seconds)
    after = answered(batch)
    found["interactive with batch"] = wait(together)
    found["batch"] = wait(batch)
    found["quiet tenant alone"] = wait(send(quiet_per_s, seconds, "quiet"))
    with ThreadPoolExecutor(1, "loud-tenant") as pool:
        sent = pool.submit(send, loud_per_s, seconds, "loud")
        together = send(quiet_per_s, seconds, "quiet")
    found["quiet tenant with a loud one"] = wait(together)
    found["loud tenant"] = wait(sent.result())
    batch_per_s = (after - before) / seconds
    return found, {"batch_left": len(batch) - after, "batch_per_s": batch_per_s}

"""`carpool bench priorities`: do batch work or one loud tenant make others wait?

The whole way without models, or with a stand-in for an LLM server. Every load is open: a question
is sent at its time, and its time counts from when it was due.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from math import inf
from typing import Any

import msgspec

from bench.core.accounting import Accounting, answer_accounting
from bench.core.load import even, poisson
from bench.core.run import ServicesRun
from bench.core.session import SentLoad, Session, open_session
from bench.core.spread import Spread, spread
from bench.core.stack import ServiceProcess, llm_url
from bench.data.made_up import ENVIRONMENT, made_up_index, made_up_questions
from bench.services.options import PrioritiesOptions
from carpool.kafka.embedded import free_port
from carpool.vllm import VllmSettings, check_vllm, model_name, vllm_command, vllm_environment
from schemas.topics import ANSWERS

BATCH_RATE_PER_S = 4_000.0
LOUD_SHARE = 0.9
SETTLE_S = 0.5
WARM_UP_SHARE = 5
"""The warm-up sends one batch question for so many that are measured."""
BATCH_SLOWDOWN_MAX = 2.0
LLM_SLOWDOWN_MAX = 1.2
TENANT_SLOWDOWN_MAX = 1.5


class ConditionResult(msgspec.Struct, frozen=True, kw_only=True):
    """Questions of one kind in one condition: ms from when each was due until it was answered."""

    total_ms: Spread | None
    accounting: Accounting


Conditions = Mapping[str, ConditionResult]


def promises_of(
    conditions: Conditions, batch_left: int, batch_max: float = BATCH_SLOWDOWN_MAX
) -> dict[str, bool]:
    """Returns each promise and whether it was kept.

    `batch_left`: batch questions without an answer when the last interactive one was sent. When it
    is 0, the backlog was too short to show anything. `batch_max`: of the slowdown by a batch.
    """
    batch = slowdown(conditions, "interactive alone", "interactive with batch")
    promises = {
        f"interactive p99 with batch at most {batch_max:g}x": batch <= batch_max,
        "batch questions were waiting all the time": batch_left > 0,
        "each question has one answer": all(each.accounting.holds for each in conditions.values()),
    }
    if "loud tenant" in conditions:
        tenant = slowdown(conditions, "quiet tenant alone", "quiet tenant with a loud one")
        name = f"other tenants' p99 with a loud one at most {TENANT_SLOWDOWN_MAX:g}x"
        promises[name] = tenant <= TENANT_SLOWDOWN_MAX
    return promises


def slowdown(conditions: Conditions, alone: str, shared: str) -> float:
    """Returns the ratio of the p99s; infinity where nothing came back."""
    first, second = conditions[alone].total_ms, conditions[shared].total_ms
    return float("inf") if first is None or second is None else second.p99 / first.p99


def run(options: PrioritiesOptions) -> bool:
    run = ServicesRun("priorities", options)
    index = made_up_index(run.folder)
    fixed, batch_max = ENVIRONMENT | {"CARPOOL_GENERATOR_PARTIALS": "false"}, BATCH_SLOWDOWN_MAX
    if options.llm_ms or options.vllm:
        fixed |= {"CARPOOL_LLM_ENGINE": "openai", "CARPOOL_GENERATOR_REUSE": "false"}
        batch_max = inf if options.vllm else LLM_SLOWDOWN_MAX
    stack: dict[str, Any] = {"llm_options": ("--latency-ms", str(options.llm_ms))}
    with ExitStack() as opened:
        if options.vllm:
            vllm, port = VllmSettings(), free_port()
            check_vllm(vllm)
            command, environ = vllm_command(vllm, port), vllm_environment(os.environ)
            log = run.folder / "vllm.log"
            opened.enter_context(ServiceProcess(command, environ=environ, log_file=log, port=port))
            stack["llm_url"] = llm_url(port)
            fixed |= {
                "CARPOOL_LLM_MODEL": model_name(vllm),
                "CARPOOL_GENERATOR_MAX_TOKENS": "32",
            }
        run.settings.update(fixed | run.settings)
        session = open_session(index.dir, run.folder, run.settings, brokers=1, **stack)
        conditions, batch = measure(opened.enter_context(session), options)
    return run.finish(
        {"priorities": conditions},
        promises=promises_of(conditions, batch["batch_left"], batch_max),
        results={"conditions": conditions, **batch},
        index=index.facts,
    )


def measure(session: Session, options: PrioritiesOptions) -> tuple[Conditions, dict[str, Any]]:
    """Warms up, until the broker's Java is compiled, and measures each condition. Blocks.

    Returns the batch questions too: those left, and how many were answered a second, alone too.
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
        session.recorder.wait(load.keys(), settle_s=SETTLE_S)
        return ConditionResult(
            total_ms=spread(session.answered_ms(load).values()),
            accounting=answer_accounting(load, session.answers(load)),
        )

    found, seconds = dict[str, ConditionResult](), options.seconds
    loud_per_s = options.tenant_rate_per_s * LOUD_SHARE
    quiet_per_s = options.tenant_rate_per_s - loud_per_s
    first_batch = batch_of(max(1, options.batch // WARM_UP_SHARE))
    wait(send(options.rate_per_s, options.warm_up_s or seconds))
    wait(first_batch)
    found["interactive alone"] = wait(send(options.rate_per_s, seconds))
    batch = batch_of(options.batch)
    before, began_s = answered(batch), time.monotonic()
    together = send(options.rate_per_s, seconds)
    after, took_s = answered(batch), time.monotonic() - began_s
    found["interactive with batch"] = wait(together)
    counts = {"batch_left": len(batch) - after, "batch_per_s": (after - before) / took_s}
    left, began_s = len(batch) - answered(batch), time.monotonic()
    found["batch"] = wait(batch)
    counts["batch_alone_per_s"] = left / (time.monotonic() - began_s - SETTLE_S)
    if not options.tenant_rate_per_s:
        return found, counts
    found["quiet tenant alone"] = wait(send(quiet_per_s, seconds, "quiet"))
    with ThreadPoolExecutor(1, "loud-tenant") as pool:
        sent = pool.submit(send, loud_per_s, seconds, "loud")
        together = send(quiet_per_s, seconds, "quiet")
    found["quiet tenant with a loud one"] = wait(together)
    found["loud tenant"] = wait(sent.result())
    return found, counts

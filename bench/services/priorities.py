"""`carpool bench priorities`: do batch work or one loud tenant make others wait?

The whole way without models. Every load is open: a question is sent at its time, and its time
counts from when it was due.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec

from bench.core.accounting import Accounting, answer_accounting, answers_of
from bench.core.load import LoadPlan, even, poisson
from bench.core.run import ServicesRun
from bench.core.session import STALLED_S, SentLoad, Session, open_session
from bench.core.spread import Spread, spread
from bench.data.made_up import ENVIRONMENT, made_up_index, made_up_questions
from bench.services.options import PrioritiesOptions
from producers.read_questions import Question
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


class PrioritiesResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result, by condition.

    `batch_left`: batch questions without an answer when the last interactive one was sent. When it
    is 0, the backlog was too short to show anything.
    """

    conditions: dict[str, ConditionResult]
    batch_left: int
    batch_per_s: float

    def slowdown(self, alone: str, beside: str) -> float:
        """Returns the ratio of the p99s; infinity where nothing came back."""
        first, second = self.conditions[alone].total_ms, self.conditions[beside].total_ms
        return float("inf") if first is None or second is None else second.p99 / first.p99

    def promises(self) -> dict[str, bool]:
        """Returns each promise and whether it was kept."""
        interactive = self.slowdown("interactive alone", "interactive beside batch")
        tenant = self.slowdown("quiet tenant alone", "quiet tenant beside a loud one")
        return {
            f"interactive p99 beside batch at most {BATCH_SLOWDOWN_MAX:g}x": interactive
            <= BATCH_SLOWDOWN_MAX,
            "batch questions were waiting all the time": self.batch_left > 0,
            f"other tenants' p99 beside a loud one at most {TENANT_SLOWDOWN_MAX:g}x": tenant
            <= TENANT_SLOWDOWN_MAX,
            "each question has one answer": all(
                each.accounting.holds for each in self.conditions.values()
            ),
        }


def run(options: PrioritiesOptions) -> bool:
    """Runs all conditions in turn on the same services; returns whether every promise was kept.

    Blocks. Raises `CarpoolError`.
    """
    run = ServicesRun("priorities", options)
    index = made_up_index(run.folder)
    run.settings.update({**ENVIRONMENT, "CARPOOL_GENERATOR_PARTIALS": "false", **run.settings})
    with open_session(index.dir, run.folder, run.settings, brokers=1) as session:
        result = _Conditions(session, options).measure()
    return run.finish(
        {"priorities": result.conditions},
        promises=result.promises(),
        results=result,
        index=index.facts,
    )


class _Conditions:
    """The conditions, one after the other, on one session."""

    def __init__(self, session: Session, options: PrioritiesOptions) -> None:
        self._session, self._options = session, options

    def measure(self) -> PrioritiesResult:
        """Warms up, until the broker's Java is compiled, and measures each condition. Blocks."""
        options, plain = self._options, LoadPlan()
        found: dict[str, ConditionResult] = {}
        quiet, loud = LoadPlan(tenant="quiet"), LoadPlan(tenant="loud")
        quiet_per_s = options.tenant_rate_per_s * (1 - LOUD_SHARE)
        loud_per_s = options.tenant_rate_per_s * LOUD_SHARE
        first_batch = self._send_batch(max(1, options.batch // WARM_UP_SHARE))
        self._wait(self._send(plain, RATE_PER_S, options.warm_up_s))
        self._wait(first_batch)
        found["interactive alone"] = self._wait(self._send(plain, RATE_PER_S))
        batch = self._send_batch(options.batch)
        before = self._answered(batch)
        beside = self._send(plain, RATE_PER_S)
        after = self._answered(batch)
        found["interactive beside batch"] = self._wait(beside)
        found["batch"] = self._wait(batch)
        found["quiet tenant alone"] = self._wait(self._send(quiet, quiet_per_s))
        with ThreadPoolExecutor(1, "loud-tenant") as pool:
            sent = pool.submit(self._send, loud, loud_per_s)
            beside = self._send(quiet, quiet_per_s)
        found["quiet tenant beside a loud one"] = self._wait(beside)
        found["loud tenant"] = self._wait(sent.result())
        return PrioritiesResult(
            conditions=found,
            batch_left=len(batch) - after,
            batch_per_s=(after - before) / options.seconds,
        )

    def _send_batch(self, count: int) -> SentLoad:
        plan = LoadPlan(priority="batch")
        return self._session.send(self._questions(count), plan, even(BATCH_RATE_PER_S))

    def _send(self, plan: LoadPlan, rate_per_s: float, seconds: float | None = None) -> SentLoad:
        count = round(rate_per_s * (seconds or self._options.seconds))
        return self._session.send(self._questions(max(1, count)), plan, poisson(rate_per_s, 0))

    def _questions(self, count: int) -> list[Question]:
        return [Question(text=each.text) for each in made_up_questions(count)]

    def _answered(self, load: SentLoad) -> int:
        return self._session.recorder.seen((ANSWERS.name,), load.keys())

    def _wait(self, load: SentLoad) -> ConditionResult:
        """Waits for the answers to what was sent."""
        recorder = self._session.recorder
        recorder.wait(load.keys(), (ANSWERS.name,), stalled_s=STALLED_S, settle_s=0.5)
        records = [record for record in recorder.records(ANSWERS.name) if record.key in load]
        times_us = (record.received_us - load[record.key].intended_us for record in records)
        return ConditionResult(
            total_ms=spread(took_us / 1_000 for took_us in times_us),
            accounting=answer_accounting(load.keys(), answers_of(records, load.keys())),
        )

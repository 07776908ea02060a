"""`carpool bench priorities`: do batch work or one loud tenant make others wait?

The whole way without models. Every load is open: a question is sent at its time, and its time
counts from when it was due.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.core.accounting import Accounting, account
from bench.core.kafka import started_broker
from bench.core.progress import Tell, progress_bars
from bench.core.services_run import begin_run
from bench.core.session import STALLED_S, SentLoad, Session, open_session
from bench.core.spread import Spread, spread
from bench.core.stack import SERVICES
from bench.data.index import BenchIndex, index_of_texts
from bench.data.made_up import ENVIRONMENT, MODEL
from bench.reliability.cli import PrioritiesOptions
from bench.services.results import answers_of
from carpool.testing.kafka import KAFKA_JAVA, KafkaServer, kafka_home
from producers.read_questions import Question
from producers.send_load import LoadPlan
from schemas.topics import ANSWERS

PASSAGES = 5_000
NLIST = 64
WORDS = 2_000
BATCH_RATE_PER_S = 4_000.0
LOUD_SHARE = 0.9
WARM_UP_SHARE = 5
"""The warm-up sends one batch question for so many that are measured."""

BATCH_SLOWDOWN_MAX = 2.0
TENANT_SLOWDOWN_MAX = 1.5


class ConditionResult(msgspec.Struct, frozen=True, kw_only=True):
    """Questions of one kind in one condition: ms from when each was due until it was answered."""

    condition: str
    total_ms: Spread | None
    accounting: Accounting


class PrioritiesResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result.

    `batch_left`: batch questions without an answer when the last interactive one was sent. When it
    is 0, the backlog was too short to show anything.
    """

    interactive_alone: ConditionResult
    interactive_beside_batch: ConditionResult
    batch: ConditionResult
    batch_left: int
    batch_per_s: float
    quiet_tenant_alone: ConditionResult
    quiet_tenant_beside_loud: ConditionResult
    loud_tenant: ConditionResult

    def conditions(self) -> tuple[ConditionResult, ...]:
        """Returns the results of all conditions."""
        return (
            *(self.interactive_alone, self.interactive_beside_batch, self.batch),
            *(self.quiet_tenant_alone, self.quiet_tenant_beside_loud, self.loud_tenant),
        )

    def promises(self) -> dict[str, bool]:
        """Returns each promise and whether it was kept."""
        interactive = slowdown(self.interactive_alone, self.interactive_beside_batch)
        tenant = slowdown(self.quiet_tenant_alone, self.quiet_tenant_beside_loud)
        return {
            f"interactive p99 beside batch at most {BATCH_SLOWDOWN_MAX:g}x": interactive
            <= BATCH_SLOWDOWN_MAX,
            "batch questions were waiting all the time": self.batch_left > 0,
            f"other tenants' p99 beside a loud one at most {TENANT_SLOWDOWN_MAX:g}x": tenant
            <= TENANT_SLOWDOWN_MAX,
            "each question has one answer": all(
                each.accounting.holds for each in self.conditions()
            ),
        }


def slowdown(alone: ConditionResult, beside: ConditionResult) -> float:
    """Returns the ratio of the p99s; infinity where nothing came back."""
    if alone.total_ms is None or beside.total_ms is None:
        return float("inf")
    return beside.total_ms.p99 / alone.total_ms.p99


@contextmanager
def brokers_of(bootstrap: str | None, folder: Path) -> Iterator[str | None]:
    """Yields the named brokers, or a new Apache Kafka where KAFKA_HOME is set, else None."""
    if bootstrap is not None or kafka_home() is None:
        yield bootstrap
        return
    with KafkaServer(folder, java=KAFKA_JAVA) as server:
        yield server.bootstrap


def made_up_index(folder: Path) -> BenchIndex:
    """Returns an index of made-up passages in `folder`; builds it if absent."""
    rng = random.Random(7)
    texts = [_text(rng, 40) for _ in range(PASSAGES)]
    return index_of_texts(texts, index_dir=folder, nlist=NLIST, model=MODEL)


def run(options: PrioritiesOptions) -> bool:
    """Runs all conditions in turn on the same services; returns whether every promise was kept.

    Blocks. Raises `CarpoolError`.
    """
    default = "embedded" if kafka_home() is None else started_broker()
    run = begin_run("priorities", options, options.bootstrap or default)
    index = made_up_index((options.work / "priorities-index").resolve())
    run.settings.update({**ENVIRONMENT, "CARPOOL_GENERATOR_PARTIALS": "false", **run.settings})
    with (
        progress_bars() as tell,
        brokers_of(options.bootstrap, run.folder / "kafka") as brokers,
        open_session(
            bootstrap=brokers,
            index_dir=index.dir,
            work_dir=run.folder,
            services=SERVICES,
            settings=run.settings,
        ) as session,
    ):
        result = _Conditions(session, options, tell).measure()
    return run.finish(
        lambda console: print_priorities(console, result),
        promises=result.promises(),
        results=result,
        index=index.facts,
    )


class _Conditions:
    """The conditions, one after the other, on one session."""

    def __init__(self, session: Session, options: PrioritiesOptions, tell: Tell) -> None:
        self._session = session
        self._options = options
        self._tell = tell
        self._rng = random.Random(options.seed)

    def measure(self) -> PrioritiesResult:
        options = self._options
        rate_per_s, duration_s = options.rate_per_s, options.duration_s
        self._warm_up()
        alone = self._ask("alone", LoadPlan(), rate_per_s, duration_s)
        batch = self._send(LoadPlan(priority="batch"), BATCH_RATE_PER_S, options.batch)
        answered_before = self._answered(batch)
        beside = self._send(LoadPlan(), rate_per_s, _count(rate_per_s, duration_s))
        batch_left = len(batch.sent) - self._answered(batch)
        interactive = self._wait("beside batch", beside)
        batch_result = self._wait("batch", batch)
        quiet_rate = options.tenant_rate_per_s * (1 - LOUD_SHARE)
        quiet_alone = self._ask(
            "quiet tenant alone", LoadPlan(tenant="quiet"), quiet_rate, duration_s
        )
        loud, quiet = self._send_both(options.tenant_rate_per_s * LOUD_SHARE, quiet_rate)
        return PrioritiesResult(
            interactive_alone=alone,
            interactive_beside_batch=interactive,
            batch=batch_result,
            batch_left=batch_left,
            batch_per_s=(len(batch.sent) - batch_left - answered_before) / duration_s,
            quiet_tenant_alone=quiet_alone,
            quiet_tenant_beside_loud=self._wait("quiet tenant beside a loud one", quiet),
            loud_tenant=self._wait("loud tenant", loud),
        )

    def _warm_up(self) -> None:
        """Sends both classes until the broker's Java is compiled, and waits for all answers."""
        options = self._options
        batch_count = max(1, options.batch // WARM_UP_SHARE)
        batch = self._send(LoadPlan(priority="batch"), BATCH_RATE_PER_S, batch_count)
        self._ask("warm-up", LoadPlan(), options.rate_per_s, options.warm_up_s)
        self._wait("warm-up, batch", batch)

    def _send_both(self, loud_rate: float, quiet_rate: float) -> tuple[SentLoad, SentLoad]:
        """Sends the loads of both tenants at the same time; returns loud and quiet."""
        duration_s = self._options.duration_s

        def send(tenant: str, rate_per_s: float) -> SentLoad:
            return self._send(LoadPlan(tenant=tenant), rate_per_s, _count(rate_per_s, duration_s))

        with ThreadPoolExecutor(1, "loud-tenant") as pool:
            loud = pool.submit(send, "loud", loud_rate)
            quiet = send("quiet", quiet_rate)
            return loud.result(), quiet

    def _ask(
        self, condition: str, plan: LoadPlan, rate_per_s: float, duration_s: float
    ) -> ConditionResult:
        return self._wait(condition, self._send(plan, rate_per_s, _count(rate_per_s, duration_s)))

    def _send(self, plan: LoadPlan, rate_per_s: float, count: int) -> SentLoad:
        return self._session.send(
            [Question(text=_text(self._rng, 8)) for _ in range(count)],
            plan,
            rate_per_s=rate_per_s,
            arrivals="even" if plan.priority == "batch" else "poisson",
            seed=self._options.seed,
        )

    def _answered(self, load: SentLoad) -> int:
        return self._session.recorder.seen((ANSWERS.name,), load.sent.keys())

    def _wait(self, condition: str, load: SentLoad) -> ConditionResult:
        """Waits for the answers to what was sent."""
        recorder, sent = self._session.recorder, load.sent
        recorder.wait(
            sent.keys(),
            (ANSWERS.name,),
            stalled_s=STALLED_S,
            settle_s=0.5,
            on_progress=lambda done: self._tell(condition, done, len(sent)),
        )
        records = [record for record in recorder.records(ANSWERS.name) if record.key in sent]
        answers = answers_of(records, sent.keys())
        return ConditionResult(
            condition=condition,
            total_ms=spread(
                (record.received_us - sent[record.key].intended_us) / 1_000 for record in records
            ),
            accounting=account(
                sent,
                (answer.query_id for answer in answers),
                {answer.query_id: answer.status for answer in answers if answer.status != "ok"},
            ),
        )


def _count(rate_per_s: float, duration_s: float) -> int:
    return max(1, round(rate_per_s * duration_s))


def _text(rng: random.Random, words: int) -> str:
    return " ".join(f"w{min(int(rng.expovariate(1 / 200)), WORDS)}" for _ in range(words))


def print_priorities(console: Console, result: PrioritiesResult) -> None:
    """Prints the tables of a result."""
    table = Table("", "questions", "p50 ms", "p99 ms", "max ms", title="Priorities")
    for each in result.conditions():
        times = each.total_ms
        cells = (
            ["nothing came back"]
            if times is None
            else [f"{ms:.1f}" for ms in (times.p50, times.p99, times.max)]
        )
        table.add_row(each.condition, str(each.accounting.published), *cells)
    console.print(table)
    console.print(
        f"batch questions left when the last interactive one was sent: {result.batch_left}; "
        f"answered a second meanwhile: {result.batch_per_s:.0f}"
    )

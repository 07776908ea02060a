"""`carpool bench priorities`: does batch work, or one loud tenant, make others wait? Whole way, no
model and no embedder.

Every load is open: a question is due at its time whether or not earlier ones are back, and its time
counts from then.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.core.accounting import Books, close_books
from bench.core.machine import Machine, Revision, program, this_machine, this_revision
from bench.core.session import Session, open_session
from bench.core.spread import Spread, spread
from bench.data.index import BenchIndex, index_of_texts
from bench.services.figures import stage_spreads_ms
from carpool.errors import CarpoolError
from carpool.testing.kafka import KAFKA_JAVA, KafkaServer, kafka_home
from producers.read_questions import Question
from producers.send_load import LoadPlan, SentQuestion
from schemas.answer import Answer
from schemas.codec import decode
from schemas.topics import ANSWERS

SERVICES = ("grouper", "searcher", "generator")
MODEL = "hashing:384"
PASSAGES = 5_000
NLIST = 64
WORDS = 2_000
STALLED_S = 60.0
BATCH_RATE_PER_S = 4_000.0
WARM_UP_SHARE = 5
"""One batch question is asked in the warm-up for so many that are measured."""
BATCH_SLOWDOWN_MAX = 2.0
TENANT_SLOWDOWN_MAX = 1.5

Tell = Callable[[str, int, int], None]


class PrioritiesOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked. `rate_per_s`: of interactive questions; `tenant_rate_per_s`: of all tenants,
    the loud one's share of it is `loud_share`; `warm_up_s`: how long both classes are asked before
    anything is measured.
    """

    batch: int
    rate_per_s: float
    tenant_rate_per_s: float
    loud_share: float
    duration_s: float
    warm_up_s: float
    seed: int


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """Questions of one kind, in one condition: times in ms from when each was due until its answer
    was read.

    `stages_ms`: what the answers say of it.
    """

    condition: str
    total_ms: Spread | None
    stages_ms: dict[str, Spread]
    books: Books


class PrioritiesResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `batch_left`: batch questions without an answer when the last interactive
    one was due: where it is 0 the backlog was too short to say anything.
    """

    interactive_alone: Asking
    interactive_beside_batch: Asking
    batch: Asking
    batch_left: int
    batch_per_s: float
    quiet_tenants_alone: Asking
    quiet_tenants_beside_loud: Asking
    loud_tenant: Asking

    @property
    def promises(self) -> dict[str, bool]:
        """What was promised, and whether it held."""
        alone, beside = self.interactive_alone, self.interactive_beside_batch
        askings = (
            alone,
            beside,
            self.batch,
            self.quiet_tenants_alone,
            self.quiet_tenants_beside_loud,
            self.loud_tenant,
        )
        return {
            f"interactive p99 beside batch at most {BATCH_SLOWDOWN_MAX:g}x": _slowdown(
                alone, beside
            )
            <= BATCH_SLOWDOWN_MAX,
            "batch questions were waiting all the time": self.batch_left > 0,
            f"other tenants' p99 beside a loud one at most {TENANT_SLOWDOWN_MAX:g}x": (
                _slowdown(self.quiet_tenants_alone, self.quiet_tenants_beside_loud)
                <= TENANT_SLOWDOWN_MAX
            ),
            "each question has one answer": all(asking.books.holds for asking in askings),
        }


class PrioritiesReport(msgspec.Struct, frozen=True, kw_only=True):
    """A run, where it ran, and what was set."""

    benchmark: str
    command: list[str]
    machine: Machine
    revision: Revision | None
    broker: str
    options: PrioritiesOptions
    services: dict[str, str]
    promises: dict[str, bool]
    results: PrioritiesResult


def _slowdown(alone: Asking, beside: Asking) -> float:
    if alone.total_ms is None or beside.total_ms is None:
        return float("inf")
    return beside.total_ms.p99 / alone.total_ms.p99


@contextmanager
def real_broker(bootstrap: str | None, folder: Path) -> Iterator[str | None]:
    """Yields the brokers that are named, or one of Apache Kafka where `KAFKA_HOME` says how; None:
    the embedded one.
    """
    if bootstrap is not None or kafka_home() is None:
        yield bootstrap
        return
    with KafkaServer(folder, java=KAFKA_JAVA) as server:
        yield server.bootstrap


def made_up_index(folder: Path) -> BenchIndex:
    """Returns an index of made-up passages, built there unless it is there already."""
    rng = random.Random(7)
    texts = [_text(rng, 40) for _ in range(PASSAGES)]
    return index_of_texts(texts, index_dir=folder, nlist=NLIST, model=MODEL)


def run_priorities(
    options: PrioritiesOptions,
    bootstrap: str | None,
    index: BenchIndex,
    work_dir: Path,
    settings: Mapping[str, str],
    tell: Tell,
) -> PrioritiesReport:
    """Runs all conditions, one after the other, on the same services. Blocks. Raises
    `CarpoolError`.
    """
    machine = this_machine()  # its load as it was before the run
    services = {
        "CARPOOL_EMBEDDING_MODEL": MODEL,
        "CARPOOL_LLM_ENGINE": "none",
        "CARPOOL_GENERATOR_PARTIALS": "false",
        **settings,
    }
    with (
        real_broker(bootstrap, work_dir / "kafka") as brokers,
        open_session(
            bootstrap=brokers,
            index_dir=index.dir,
            work_dir=work_dir,
            services=SERVICES,
            settings=services,
        ) as session,
    ):
        result = _Run(session, options, tell).all()
    return PrioritiesReport(
        benchmark="priorities",
        command=program(),
        machine=machine,
        revision=this_revision(),
        broker=bootstrap
        or ("embedded" if brokers is None else "Apache Kafka, one broker of its own"),
        options=options,
        services=services,
        promises=result.promises,
        results=result,
    )


class _Run:
    """The conditions on one session."""

    def __init__(self, session: Session, options: PrioritiesOptions, tell: Tell) -> None:
        self._session = session
        self._options = options
        self._tell = tell
        self._rng = random.Random(options.seed)

    def all(self) -> PrioritiesResult:
        options = self._options
        self._warm_up()
        alone = self._ask("alone", LoadPlan(), options.rate_per_s, options.duration_s)
        batch = self._send(LoadPlan(priority="batch"), BATCH_RATE_PER_S, options.batch)
        batch_ids = batch.keys()
        seen_before = self._seen(batch_ids)
        beside = self._send(
            LoadPlan(), options.rate_per_s, self._count(options.rate_per_s, options.duration_s)
        )
        batch_left = len(batch) - self._seen(batch_ids)
        beside_asked = self._back("beside batch", beside)
        batch_asked = self._back("batch", batch)
        quiet_rate = options.tenant_rate_per_s * (1 - options.loud_share)
        quiet_alone = self._ask(
            "other tenants alone", LoadPlan(tenant="quiet"), quiet_rate, options.duration_s
        )
        loud_rate = options.tenant_rate_per_s * options.loud_share
        loud, quiet = self._both(loud_rate, quiet_rate)
        return PrioritiesResult(
            interactive_alone=alone,
            interactive_beside_batch=beside_asked,
            batch=batch_asked,
            batch_left=batch_left,
            batch_per_s=(len(batch) - batch_left - seen_before) / options.duration_s,
            quiet_tenants_alone=quiet_alone,
            quiet_tenants_beside_loud=self._back("other tenants beside a loud one", quiet),
            loud_tenant=self._back("loud tenant", loud),
        )

    def _warm_up(self) -> None:
        """Asks of both classes, so that nothing is measured on a broker that compiles itself, and
        waits for all answers.
        """
        options = self._options
        batch = self._send(
            LoadPlan(priority="batch"), BATCH_RATE_PER_S, max(1, options.batch // WARM_UP_SHARE)
        )
        self._ask("warm-up", LoadPlan(), options.rate_per_s, options.warm_up_s)
        self._back("warm-up, batch", batch)

    def _both(
        self, loud_rate: float, quiet_rate: float
    ) -> tuple[dict[str, SentQuestion], dict[str, SentQuestion]]:
        """Sends of both tenants at once; returns what each sent."""
        sent: dict[str, SentQuestion] = {}
        failures: list[CarpoolError] = []

        def send_loud() -> None:
            try:
                count = self._count(loud_rate, self._options.duration_s)
                sent.update(self._send(LoadPlan(tenant="loud"), loud_rate, count))
            except CarpoolError as error:
                failures.append(error)

        thread = threading.Thread(target=send_loud, name="loud-tenant")
        thread.start()
        count = self._count(quiet_rate, self._options.duration_s)
        quiet = self._send(LoadPlan(tenant="quiet"), quiet_rate, count)
        thread.join()
        if failures:
            raise failures[0]
        return sent, quiet

    def _ask(self, condition: str, plan: LoadPlan, rate_per_s: float, duration_s: float) -> Asking:
        return self._back(
            condition, self._send(plan, rate_per_s, self._count(rate_per_s, duration_s))
        )

    @staticmethod
    def _count(rate_per_s: float, duration_s: float) -> int:
        return max(1, round(rate_per_s * duration_s))

    def _send(self, plan: LoadPlan, rate_per_s: float, count: int) -> dict[str, SentQuestion]:
        questions = [Question(text=_text(self._rng, 8)) for _ in range(count)]
        sent, _ = self._session.send(
            questions,
            plan,
            rate_per_s=rate_per_s,
            arrivals="even" if plan.priority == "batch" else "poisson",
            seed=self._options.seed,
        )
        return sent

    def _seen(self, ids: Set[str]) -> int:
        return self._session.reader.seen((ANSWERS.name,), ids)

    def _back(self, condition: str, sent: Mapping[str, SentQuestion]) -> Asking:
        """Waits for the answers to what was sent."""
        reader = self._session.reader
        reader.wait(
            sent.keys(),
            (ANSWERS.name,),
            stalled_s=STALLED_S,
            settle_s=0.5,
            on_progress=lambda done: self._tell(condition, done, len(sent)),
        )
        arrived = [record for record in reader.records(ANSWERS.name) if record.key in sent]
        answers = [decode(Answer, record.value, record.headers) for record in arrived]
        return Asking(
            condition=condition,
            total_ms=spread(
                (record.arrived_us - sent[record.key].intended_us) / 1_000 for record in arrived
            ),
            stages_ms=stage_spreads_ms(
                {name: int(time_ms * 1_000) for name, time_ms in answer.timings_ms.items()}
                for answer in answers
            ),
            books=close_books(
                sent,
                [answer.query_id for answer in answers],
                {answer.query_id: answer.status for answer in answers if answer.status != "ok"},
            ),
        )


def _text(rng: random.Random, words: int) -> str:
    return " ".join(f"w{min(int(rng.expovariate(1 / 200)), WORDS)}" for _ in range(words))


def lines(result: PrioritiesResult) -> Sequence[str]:
    """Returns the figures as lines to read."""
    rows = [f"{'':<34}{'asked':>8}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}"]
    for asking in (
        result.interactive_alone,
        result.interactive_beside_batch,
        result.batch,
        result.quiet_tenants_alone,
        result.quiet_tenants_beside_loud,
        result.loud_tenant,
    ):
        times = asking.total_ms
        shown = (
            f"{times.p50:>9.1f}{times.p99:>9.1f}{times.max:>9.1f}"
            if times is not None
            else f"{'none came back':>27}"
        )
        rows.append(f"{asking.condition:<34}{asking.books.published:>8}{shown}")
    waits = [
        f"{stage} {times.p50:.0f}/{times.p99:.0f}"
        for stage, times in result.interactive_beside_batch.stages_ms.items()
    ]
    rows.append("interactive beside batch, p50/p99 ms by stage: " + ", ".join(waits))
    rows.append(f"batch questions left when the last interactive one was due: {result.batch_left}")
    rows.append(f"batch questions answered a second meanwhile: {result.batch_per_s:.0f}")
    rows += [
        f"{'held  ' if held else 'BROKEN'}  {promise}" for promise, held in result.promises.items()
    ]
    return rows

"""One run of chaos: a cluster, two members of each service, a steady load, strikes; then the books
over every topic.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from bench.core.made_up import ENVIRONMENT, by_label, fresh_folder
from bench.core.session import INPUTS
from bench.core.stack import SERVICES, ServiceProcess, Stack, member_names
from bench.core.topic_recorder import TopicRecorder
from bench.data.index import BenchIndex
from bench.reliability.chaos.books import TOPICS, ChaosBooks, TopicLedger
from bench.reliability.chaos.keeper import EndedByItself, Keeper, Kept
from bench.reliability.chaos.plan import Strike
from bench.reliability.chaos.reading import Behind, behind, read_committed
from bench.reliability.chaos.strikes import Striker, Struck
from carpool.clock import SystemClock
from carpool.errors import CarpoolError
from carpool.kafka.admin import create_topics
from carpool.kafka.fencing import transactional_id
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaCluster
from carpool.testing.transactions import Transaction, describe_transaction
from producers.arrival_times import bounded, even
from producers.publish_queries import Publisher
from producers.read_questions import Question
from producers.send_load import LoadPlan, LoadSummary, run_load
from producers.settings import ClientSettings
from schemas.topics import ANSWERS

MEMBERS = 2
TURN_S = 0.05
LOOK_S = 1.0
"""How often metrics of all members are read, so that little of what a life counted is lost with
it.
"""
TELL_S = 5.0
STALLED_S = 120.0
SETTLE_S = 3.0
BACK_TIMEOUT_S = 60.0
PUBLISH_TIMEOUT_MS = 600_000
BROKER = "broker"
COUNTERS = {
    "carpool_transactions_total": "outcome",
    "carpool_rebalances_total": "event",
}
"""Metrics that are added up over all lives, and the label that they are told apart by."""


class ChaosRun(msgspec.Struct, frozen=True, kw_only=True):
    """What happened. Times are seconds of the run. `counters`: what all lives counted as last seen,
    by metric and label.
    """

    took_s: float
    load: LoadSummary
    struck: tuple[Struck, ...]
    not_struck: tuple[Strike, ...]
    ended: tuple[EndedByItself, ...]
    back_after_s: dict[str, list[float]]
    answers_s: tuple[float, ...]
    counters: dict[str, dict[str, float]]
    open_at_end: tuple[str, ...]
    behind: tuple[Behind, ...]
    books: ChaosBooks


class _Counters:
    """Counters of every life of every member, as last seen."""

    def __init__(self) -> None:
        self._lives: dict[tuple[str, int], dict[str, float]] = {}

    def look(self, member: str, process: ServiceProcess) -> dict[str, float]:
        """Reads its metrics, keeps what they count, and returns them; none when nothing answers."""
        samples = process.samples()
        if samples:
            self._lives[member, process.pid] = samples
        return samples

    def added(self) -> dict[str, dict[str, float]]:
        """Returns what all lives counted, by metric and "SERVICE LABEL"."""
        found: dict[str, dict[str, float]] = {metric: {} for metric in COUNTERS}
        for (member, _), samples in self._lives.items():
            for metric, label in COUNTERS.items():
                for value, count in by_label(samples, metric, label).items():
                    key = f"{_service(member)} {value}"
                    found[metric][key] = found[metric].get(key, 0.0) + count
        return found


class _Load(threading.Thread):
    """Publishes the questions at a steady rate."""

    def __init__(
        self, kafka: KafkaSettings, questions: Sequence[Question], plan: LoadPlan, rate_per_s: float
    ) -> None:
        super().__init__(name="load", daemon=True)
        self._publisher = Publisher(kafka, ClientSettings(publish_timeout_ms=PUBLISH_TIMEOUT_MS))
        self._questions = questions
        self._plan = plan
        self._rate_per_s = rate_per_s
        self._failure: Exception | None = None
        self.sent: list[str] = []
        self.summary: LoadSummary | None = None

    def run(self) -> None:
        times_us = bounded(even(self._rate_per_s), duration_s=None, limit=len(self._questions))
        try:
            self.summary = run_load(
                self._publisher,
                self._questions,
                times_us,
                plan=self._plan,
                clock=SystemClock(),
                on_sent=lambda sent: self.sent.append(sent.query_id),
                flush_timeout_s=PUBLISH_TIMEOUT_MS / 1_000,
            )
        except Exception as error:  # told by the thread that waits for it
            self._failure = error
        finally:
            self._publisher.close(5.0)

    def end(self) -> LoadSummary:
        """Waits for the end. Raises `CarpoolError` when not every question is known to be in its
        topic.
        """
        self.join()
        if self._failure is not None:
            raise self._failure
        assert self.summary is not None, "a load that ended without an error has a summary"
        if self.summary.errors or self.summary.unacknowledged:
            raise CarpoolError(
                f"{self.summary.errors} questions failed and {self.summary.unacknowledged} were "
                f"not acknowledged ({self.summary.first_error}): it cannot be told what is lost"
            )
        return self.summary


class _Run:
    """The run as the strikes see it and the turns between them."""

    def __init__(
        self,
        *,
        cluster: KafkaCluster,
        stack: Stack,
        kafka: KafkaSettings,
        reader: TopicRecorder,
        load: _Load,
    ) -> None:
        self.keeper = Keeper(
            {kept.name: kept for kept in (*_kept_members(stack), *_kept_brokers(cluster))}
        )
        self.counters = _Counters()
        self.started_us = 0
        self._cluster = cluster
        self._stack = stack
        self._kafka = kafka
        self._reader = reader
        self._load = load
        self._clock = SystemClock()
        self._next_look_s = self._next_told_s = 0.0

    def begin(self) -> None:
        """Starts the load; the time of the run counts from now."""
        self.started_us = self._clock.now_us()
        self._load.start()

    def now_s(self) -> float:
        """See `Seen`."""
        return (self._clock.now_us() - self.started_us) / 1_000_000

    def published(self) -> int:
        """See `Seen`."""
        return len(self._load.sent)

    def answered(self) -> int:
        """See `Seen`."""
        return self._reader.distinct(ANSWERS.name)

    def in_flight(self, member: str) -> int:
        """See `Seen`."""
        return int(
            self.counters.look(member, self._stack[member]).get("carpool_units_in_flight", 0)
        )

    def transaction(self, member: str) -> Transaction | None:
        """See `Seen`."""
        transactional = transactional_id(self._kafka.group_of(_service(member)), member)
        return describe_transaction(self._cluster.bootstrap, transactional)

    def brokers_are_whole(self) -> bool:
        """See `Seen`."""
        names = [name for name in self.keeper.kept if name.startswith(BROKER)]
        return (
            all(self.keeper.is_up(name) for name in names) and self._cluster.missing_copies() == 0
        )

    def turn(self, struck: int, tell: Callable[[str], None]) -> None:
        """Brings back what is due, looks at the metrics and tells of progress now and then, and
        waits for a moment.
        """
        self.keeper.step(self.now_s())
        if self.now_s() >= self._next_look_s:
            self._next_look_s = self.now_s() + LOOK_S
            self.look()
        if self.now_s() >= self._next_told_s:
            self._next_told_s = self.now_s() + TELL_S
            away = ", ".join(
                f"{kept.name} {kept.state}"
                for kept in self.keeper.kept.values()
                if kept.state != "up"
            )
            tell(
                f"{self.now_s():.0f} s: {self.published():,} sent, {self.answered():,} answered, "
                f"{struck} struck, "
                f"{len(self.keeper.ended)} ended by themselves{f'; {away}' if away else ''}"
            )
        time.sleep(TURN_S)

    def look(self) -> None:
        """Reads the metrics of every member that is there."""
        for name in members():
            if self.keeper.is_up(name):
                self.counters.look(name, self._stack[name])

    def is_done(self) -> bool:
        """Whether all was sent, and answered."""
        return not self._load.is_alive() and self.answered() >= self.published()

    def open_transactions(self) -> tuple[str, ...]:
        """Returns the members with a transaction that nobody ended."""
        found = {name: self.transaction(name) for name in members()}
        return tuple(name for name, each in found.items() if each is not None and each.is_open)


def run_chaos(
    index: BenchIndex,
    questions: Sequence[Question],
    plan: Sequence[Strike],
    *,
    rate_per_s: float,
    seed: int,
    folder: Path,
    settings: Mapping[str, str],
    tell: Callable[[str], None],
) -> ChaosRun:
    """Runs it. Blocks for as long as the load and its drain take. Raises `CarpoolError` when the
    run itself broke.
    """
    with ExitStack() as exits:
        data = exits.enter_context(fresh_folder(folder / "kafka"))
        cluster = exits.enter_context(KafkaCluster(data))
        kafka = KafkaSettings(bootstrap=cluster.bootstrap, group_prefix="chaos")
        create_topics(kafka)
        stack = exits.enter_context(
            Stack(
                bootstrap=cluster.bootstrap,
                index_dir=index.dir,
                work_dir=folder,
                members=MEMBERS,
                settings={
                    **ENVIRONMENT,
                    "CARPOOL_KAFKA_GROUP_PREFIX": kafka.group_prefix,
                    **settings,
                },
            )
        )
        reader = exits.enter_context(
            TopicRecorder(kafka, [ANSWERS.name], SystemClock(), from_beginning=True)
        )
        load = _Load(
            kafka, questions, LoadPlan(embedding_model=index.manifest.embedding_model), rate_per_s
        )
        run = _Run(cluster=cluster, stack=stack, kafka=kafka, reader=reader, load=load)
        striker = Striker(list(plan), run.keeper, run, random.Random(seed))
        run.begin()
        took_s = _to_the_end(run, striker, tell)
        summary = load.end()
        stack.stop()
        ledger = TopicLedger(run.started_us // 1_000)
        tell("reading every topic to its end")
        open_at_end = run.open_transactions()
        last_offsets: dict[str, dict[int, int]] = {topic: {} for topic in TOPICS}
        for record in read_committed(kafka, TOPICS):
            ledger.take(record)
            last_offsets[record.topic][record.partition] = record.offset
        return ChaosRun(
            took_s=took_s,
            load=summary,
            struck=tuple(striker.struck),
            not_struck=tuple(striker.pending),
            ended=tuple(run.keeper.ended),
            back_after_s=run.keeper.back_after_s,
            answers_s=tuple(
                (one.arrived_us - run.started_us) / 1_000_000
                for one in reader.records(ANSWERS.name)
            ),
            counters=run.counters.added(),
            open_at_end=open_at_end,
            behind=tuple(
                each
                for service, topic in INPUTS.items()
                for each in behind(kafka, kafka.group_of(service), topic, last_offsets[topic])
            ),
            books=ledger.close(load.sent),
        )


def _to_the_end(run: _Run, striker: Striker, tell: Callable[[str], None]) -> float:
    """Strikes and waits until all is answered, or nothing has been for `STALLED_S`; returns how
    long that took.
    """
    answered, since_s = 0, run.now_s()
    while not run.is_done() and run.now_s() - since_s < STALLED_S:
        striker.step()
        run.turn(len(striker.struck), tell)
        if run.answered() > answered:
            answered, since_s = run.answered(), run.now_s()
    took_s = run.now_s()
    while not run.keeper.all_up() and run.now_s() - took_s < BACK_TIMEOUT_S:
        run.turn(len(striker.struck), tell)
    time.sleep(SETTLE_S)  # for what may come twice
    run.look()
    return took_s


def members() -> list[str]:
    """Returns what the processes of the services are called, which are their instance ids too."""
    return [name for service in SERVICES for name in member_names(service, MEMBERS)]


def _service(member: str) -> str:
    return member.partition("-")[0]


def _kept_members(stack: Stack) -> Iterator[Kept]:
    for name in members():
        process = stack[name]
        # Alive is enough: of a topic with one partition only one member has anything to be ready
        # for.
        yield Kept(
            name=name, process=process, start=process.start, is_up=partial(_answers, process)
        )


def _answers(process: ServiceProcess) -> bool:
    return process.page("/healthz")[0] == 200


def _kept_brokers(cluster: KafkaCluster) -> Iterator[Kept]:
    for name, server in zip(broker_names(len(cluster.servers)), cluster.servers, strict=True):
        yield Kept(name=name, process=server, start=server.launch, is_up=server.is_listening)


def broker_names(count: int) -> list[str]:
    """Returns what the brokers of a run are called."""
    return [f"{BROKER}-{number}" for number in range(1, count + 1)]

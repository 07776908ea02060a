"""One chaos run: a cluster, two members of each service, a steady load, faults, the audit."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from bench.core.kafka import fresh_folder
from bench.core.session import require_all_sent
from bench.core.stack import SERVICES, ServiceProcess, Stack, member_names
from bench.core.topic_recorder import TOPIC_PATIENCE_S, TopicRecorder
from bench.data.index import BenchIndex
from bench.data.made_up import ENVIRONMENT
from bench.reliability.chaos.audit import TOPICS_READ, AuditResult, TopicAudit
from bench.reliability.chaos.faults import FaultInjector, InjectedFault
from bench.reliability.chaos.plan import PlannedFault
from bench.reliability.chaos.supervisor import (
    ProcessSupervisor,
    SupervisedProcess,
    UnplannedExit,
)
from carpool.clock import SystemClock
from carpool.kafka.admin import create_topics
from carpool.kafka.fencing import transactional_id
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from carpool.testing.kafka import KafkaCluster
from carpool.testing.transactions import DescribedTransaction, describe_transaction
from producers.arrival_times import bounded, even
from producers.publish_queries import Publisher
from producers.read_questions import Question
from producers.send_load import LoadPlan, LoadSummary, run_load
from producers.settings import ClientSettings
from schemas.topics import ANSWERS, MESSAGE_BYTES_MAX

MEMBERS = 2
STEP_S = 0.05
NOTE_S = 5.0
STALLED_S = 120.0
SETTLE_S = 3.0
BACK_TIMEOUT_S = 60.0
PUBLISH_TIMEOUT_MS = 600_000
READ_TIMEOUT_S = 120.0
BROKER = "broker"

Note = Callable[[str], None]


class ChaosRun(msgspec.Struct, frozen=True, kw_only=True):
    """What happened. Times are seconds of the run; `answers_s`: when answers were read."""

    took_s: float
    load: LoadSummary
    injected: tuple[InjectedFault, ...]
    not_injected: tuple[PlannedFault, ...]
    exits: tuple[UnplannedExit, ...]
    back_after_s: dict[str, list[float]]
    answers_s: tuple[float, ...]
    open_at_end: tuple[str, ...]
    audit: AuditResult


class _SteadyLoad(threading.Thread):
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
        self._summary: LoadSummary | None = None
        self.sent: list[str] = []

    def run(self) -> None:
        times_us = bounded(even(self._rate_per_s), duration_s=None, limit=len(self._questions))
        try:
            self._summary = run_load(
                self._publisher,
                self._questions,
                times_us,
                plan=self._plan,
                clock=SystemClock(),
                on_sent=lambda sent: self.sent.append(sent.query_id),
                flush_timeout_s=PUBLISH_TIMEOUT_MS / 1_000,
            )
        except Exception as error:  # raised by `end`
            self._failure = error
        finally:
            self._publisher.close(5.0)

    def end(self) -> LoadSummary:
        """Waits for the end. Raises `CarpoolError` where a question may be missing in its topic."""
        self.join()
        if self._failure is not None:
            raise self._failure
        assert self._summary is not None, "a load that ended without an error has a summary"
        require_all_sent(self._summary)
        return self._summary


class _LiveRun:
    """The running cluster, services and load, as the fault injector reads them."""

    def __init__(
        self,
        *,
        cluster: KafkaCluster,
        stack: Stack,
        kafka: KafkaSettings,
        recorder: TopicRecorder,
        load: _SteadyLoad,
    ) -> None:
        self.supervisor = ProcessSupervisor(
            {
                each.name: each
                for each in (*_supervised_members(stack), *_supervised_brokers(cluster))
            }
        )
        self.started_us = 0
        self._cluster = cluster
        self._stack = stack
        self._kafka = kafka
        self._recorder = recorder
        self._load = load
        self._clock = SystemClock()

    def begin(self) -> None:
        """Starts the load and the time of the run."""
        self.started_us = self._clock.now_us()
        self._load.start()

    def now_s(self) -> float:
        return (self._clock.now_us() - self.started_us) / 1_000_000

    def published(self) -> int:
        return len(self._load.sent)

    def answered(self) -> int:
        return self._recorder.distinct(ANSWERS.name)

    def in_flight(self, member: str) -> int:
        return int(self._stack[member].metric("carpool_units_in_flight"))

    def transaction(self, member: str) -> DescribedTransaction | None:
        group = self._kafka.group_of(member.partition("-")[0])
        return describe_transaction(self._cluster.bootstrap, transactional_id(group, member))

    def brokers_are_whole(self) -> bool:
        names = [name for name in self.supervisor.processes if name.startswith(BROKER)]
        all_up = all(self.supervisor.is_up(name) for name in names)
        return all_up and self._cluster.missing_copies() == 0

    def is_done(self) -> bool:
        """Whether all questions were sent and answered."""
        return not self._load.is_alive() and self.answered() >= self.published()

    def step(self) -> None:
        """Steps the supervisor and waits for a moment."""
        self.supervisor.step(self.now_s())
        time.sleep(STEP_S)

    def status(self, injected: int) -> str:
        """Returns the progress as one line of text."""
        down = ", ".join(
            f"{each.name} {each.state}"
            for each in self.supervisor.processes.values()
            if each.state != "up"
        )
        return (
            f"{self.now_s():.0f} s: {self.published():,} sent, {self.answered():,} answered, "
            f"{injected} faults, {len(self.supervisor.exits)} ended by themselves"
            f"{f'; {down}' if down else ''}"
        )

    def open_transactions(self) -> tuple[str, ...]:
        """Returns the members whose transaction is still open."""
        found = {name: self.transaction(name) for name in members()}
        return tuple(name for name, each in found.items() if each is not None and each.is_open)


def run_chaos(
    index: BenchIndex,
    questions: Sequence[Question],
    plan: Sequence[PlannedFault],
    *,
    rate_per_s: float,
    seed: int,
    folder: Path,
    settings: Mapping[str, str],
    note: Note,
) -> ChaosRun:
    """Runs it, and audits all topics. Blocks. Raises `CarpoolError` when the run itself failed."""
    with ExitStack() as opened:
        data = opened.enter_context(fresh_folder(folder / "kafka"))
        cluster = opened.enter_context(KafkaCluster(data))
        kafka = KafkaSettings(bootstrap=cluster.bootstrap, group_prefix="chaos")
        create_topics(kafka)
        prefix = {"CARPOOL_KAFKA_GROUP_PREFIX": kafka.group_prefix}
        stack = opened.enter_context(
            Stack(
                bootstrap=cluster.bootstrap,
                index_dir=index.dir,
                work_dir=folder,
                members=MEMBERS,
                settings={**ENVIRONMENT, **prefix, **settings},
            )
        )
        recorder = opened.enter_context(
            TopicRecorder(kafka, [ANSWERS.name], SystemClock(), from_beginning=True)
        )
        load_plan = LoadPlan(embedding_model=index.manifest.embedding_model)
        load = _SteadyLoad(kafka, questions, load_plan, rate_per_s)
        run = _LiveRun(cluster=cluster, stack=stack, kafka=kafka, recorder=recorder, load=load)
        injector = FaultInjector(list(plan), run.supervisor, run, random.Random(seed))
        run.begin()
        took_s = _inject_until_answered(run, injector, note)
        summary = load.end()
        stack.stop()
        open_at_end = run.open_transactions()
        note("reading every topic to its end")
        audit = audit_topics(kafka, run.started_us // 1_000)
        received_us = [record.received_us for record in recorder.records(ANSWERS.name)]
        return ChaosRun(
            took_s=took_s,
            load=summary,
            injected=tuple(injector.injected),
            not_injected=tuple(injector.pending),
            exits=tuple(run.supervisor.exits),
            back_after_s=run.supervisor.back_after_s,
            answers_s=tuple((at_us - run.started_us) / 1_000_000 for at_us in received_us),
            open_at_end=open_at_end,
            audit=audit.result(load.sent),
        )


def _inject_until_answered(run: _LiveRun, injector: FaultInjector, note: Note) -> float:
    """Injects faults until all is answered, or no answer came for `STALLED_S`; returns the time."""
    answered, since_s, next_note_s = 0, run.now_s(), 0.0
    while not run.is_done() and run.now_s() - since_s < STALLED_S:
        injector.step()
        run.step()
        if run.answered() > answered:
            answered, since_s = run.answered(), run.now_s()
        if run.now_s() >= next_note_s:
            next_note_s = run.now_s() + NOTE_S
            note(run.status(len(injector.injected)))
    took_s = run.now_s()
    while not run.supervisor.all_up() and run.now_s() - took_s < BACK_TIMEOUT_S:
        run.step()
    time.sleep(SETTLE_S)  # for records that come twice
    return took_s


def audit_topics(kafka: KafkaSettings, started_ms: int) -> TopicAudit:
    """Reads every topic to the end that a reader of committed records sees.

    Raises `CarpoolError` after `READ_TIMEOUT_S` without a record.
    """
    audit = TopicAudit(started_ms)
    config = {"fetch.message.max.bytes": MESSAGE_BYTES_MAX}
    with TopicReader(kafka, SystemClock(), name="bench-audit", config=config) as reader:
        places = [
            at
            for topic in TOPICS_READ
            for at in reader.partitions(topic, patience_s=TOPIC_PATIENCE_S)
        ]
        for record in reader.read_to_end(places, silence_s=READ_TIMEOUT_S):
            audit.take(record)
    return audit


def members() -> list[str]:
    """Returns the names of the services' processes: their instance ids too."""
    return [name for service in SERVICES for name in member_names(service, MEMBERS)]


def broker_names(count: int) -> list[str]:
    """Returns the names of the brokers."""
    return [f"{BROKER}-{number}" for number in range(1, count + 1)]


def _supervised_members(stack: Stack) -> Iterator[SupervisedProcess]:
    for name in members():
        process = stack[name]
        # Of two members of a topic with one partition, one never becomes ready.
        is_up = partial(_is_alive, process)
        yield SupervisedProcess(name=name, process=process, start=process.start, is_up=is_up)


def _is_alive(process: ServiceProcess) -> bool:
    return process.page("/healthz")[0] == 200


def _supervised_brokers(cluster: KafkaCluster) -> Iterator[SupervisedProcess]:
    for name, server in zip(broker_names(len(cluster.servers)), cluster.servers, strict=True):
        yield SupervisedProcess(
            name=name, process=server, start=server.launch, is_up=server.is_listening
        )

"""The running cluster, services and load, as the fault injector reads and steps them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from bench.core.stack import SERVICES, Stack, member_names
from bench.core.topic_recorder import TopicRecorder
from bench.reliability.chaos.base_watch import BaseWatch
from bench.reliability.chaos.coordinators import CoordinatorsAndLeaders
from bench.reliability.chaos.document_load import DocumentLoad
from bench.reliability.chaos.llm_calls import LlmStandIn
from bench.reliability.chaos.load import LetterReplays, SteadyLoad
from bench.reliability.chaos.network import NetworkFaults
from bench.reliability.chaos.plan import MEMBERS
from bench.reliability.chaos.states import StateFaults
from bench.reliability.chaos.supervisor import ProcessSupervisor, SupervisedProcess
from carpool.errors import RetryableError
from carpool.kafka.fencing import transactional_id
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaCluster
from schemas.answer import Answer
from schemas.codec import decode
from schemas.topics import ANSWERS

STEP_S = 0.05
BROKERS = ("broker-1", "broker-2", "broker-3")


def instances_of(services: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of the services' processes: their instance ids too."""
    return tuple(name for service in services for name in member_names(service, MEMBERS))


INSTANCES = instances_of(SERVICES)
LLM_SERVERS = member_names("llm", 2)


@dataclass(slots=True, kw_only=True)
class LiveRun:
    """A run in progress. Times are seconds since `begin`. `dead`: ids that become dead letters.

    `coordinators`: not through the proxies, as a broken network hides nothing from the injector.
    """

    cluster: KafkaCluster
    kafka: KafkaSettings
    stack: Stack
    supervisor: ProcessSupervisor
    network: NetworkFaults
    states: StateFaults
    coordinators: CoordinatorsAndLeaders
    recorder: TopicRecorder
    stand_ins: Mapping[str, LlmStandIn]
    load: SteadyLoad
    documents: DocumentLoad
    bases: BaseWatch
    replays: LetterReplays
    dead: Set[str]
    started_s: float = field(default=0.0, init=False)

    def begin(self) -> None:
        """Starts the load and the time of the run."""
        self.started_s = time.time()
        self.load.start()
        self.documents.start()
        self.replays.start()

    def end_load(self) -> list[str]:
        """Returns the ids that were published, with repetitions. Raises `CarpoolError`."""
        self.load.end()
        self.documents.end()
        self.documents.fetch_all()
        self.replays.end()
        return self.load.sent + [each.id for each in self.documents.asked]

    def now_s(self) -> float:
        """Returns the seconds since the run began."""
        return time.time() - self.started_s

    def published(self) -> int:
        """Returns the number of questions sent so far."""
        return len(self.load.sent) + len(self.documents.asked) + self.replays.replayed

    def answered(self) -> int:
        """Returns the number of questions with a committed answer so far."""
        return self.recorder.distinct(ANSWERS.name)

    def in_flight(self, member: str) -> int:
        """Returns the records, or requests, that it has in flight; 0 when it does not answer."""
        if member in self.stand_ins:
            return self.stand_ins[member].in_flight()
        return int(self.stack[member].metric("carpool_units_in_flight"))

    def has_open_transaction(self, member: str, *, with_records: bool = False) -> bool:
        """Whether the brokers say that a member's transaction is open; False: no answer."""
        name = transactional_id(self.kafka.group_of(member.partition("-")[0]), member)
        try:
            return self.coordinators.is_open(name, with_records=with_records)
        except RetryableError:
            return False

    def brokers_are_whole(self) -> bool:
        """Whether every broker is up and has every copy of every partition."""
        all_up = all(self.supervisor.is_up(name) for name in BROKERS)
        return all_up and self.cluster.missing_copies() == 0

    def is_done(self) -> bool:
        """Whether all questions were sent and answered or removed, and all letters replayed."""
        left, removed = self.published() - self.answered(), self.states.removed
        if self.load.is_alive() or self.documents.is_writing or left > len(removed):
            return False
        gone = removed.keys() - self._answered_places() if removed else set[str]()
        dead = self.dead - {removed[place] for place in gone}
        return left <= len(gone) and self.replays.replayed >= len(dead)

    def _answered_places(self) -> set[str]:
        records = self.recorder.records(ANSWERS.name)
        answers = (decode(Answer, record.value, record.headers) for record in records)
        return {answer.source.place for answer in answers if answer.source is not None}

    def step(self) -> None:
        """Steps the supervisor and the faults in progress, and waits for a moment."""
        now_s = self.now_s()
        for each in (self.network, self.states, self.supervisor):
            each.step(now_s)
        time.sleep(STEP_S)

    def status(self, injected: int) -> str:
        """Returns the progress as one line of text."""
        return (
            f"{self.now_s():.0f} s: {self.published():,} sent, {self.answered():,} answered, "
            f"{injected} faults, {len(self.supervisor.exits)} ended by themselves"
        )

    def open_transactions(self) -> tuple[str, ...]:
        """Returns the members whose transaction is still open, at the end of the run."""
        found = tuple(filter(self.has_open_transaction, self.stack.instances()))
        self.coordinators.close()
        return found


def supervised(
    stack: Stack, cluster: KafkaCluster, stand_ins: Mapping[str, LlmStandIn]
) -> Iterator[tuple[str, SupervisedProcess]]:
    """Yields every process of a run by its name."""
    for name in stack.instances():
        process = stack[name]
        yield name, SupervisedProcess(process, process.start, process.is_up)
    for name, server in zip(BROKERS, cluster.servers, strict=True):
        yield name, SupervisedProcess(server, server.launch, server.is_listening)
    for name, each in stand_ins.items():
        yield name, SupervisedProcess(each, each.start, each.is_up)

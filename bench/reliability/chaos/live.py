"""The running cluster, services and load, as the fault injector reads and steps them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from confluent_kafka.admin import AdminClient

from bench.core.stack import SERVICES, ServiceProcess, Stack, member_names
from bench.core.topic_recorder import TopicRecorder
from bench.reliability.chaos.llm_calls import LlmStandIn
from bench.reliability.chaos.load import LetterReplays, SteadyLoad, Withdrawals
from bench.reliability.chaos.network import NetworkFaults
from bench.reliability.chaos.plan import MEMBERS
from bench.reliability.chaos.states import StateFaults
from bench.reliability.chaos.supervisor import ProcessSupervisor, SupervisedProcess
from carpool.clock import SystemClock
from carpool.kafka.fencing import transactional_id
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaCluster
from carpool.testing.transactions import DescribedTransaction, describe_transaction
from schemas.answer import Answer
from schemas.codec import decode
from schemas.topics import ANSWERS

STEP_S = 0.05
BROKER = "broker"


class LiveRun:
    """A run in progress. Times are seconds since `begin`."""

    def __init__(
        self,
        *,
        cluster: KafkaCluster,
        network: NetworkFaults,
        stack: Stack,
        kafka: KafkaSettings,
        recorder: TopicRecorder,
        loads: Sequence[SteadyLoad],
        withdrawals: Withdrawals,
        replays: LetterReplays,
        dead: frozenset[str],
        stand_ins: Mapping[str, LlmStandIn],
    ) -> None:
        supervised = (
            *_supervised_members(stack),
            *_supervised_brokers(cluster),
            *_supervised_stand_ins(stand_ins),
        )
        self.supervisor = ProcessSupervisor({each.name: each for each in supervised})
        self.network = network
        admin = AdminClient({"bootstrap.servers": cluster.own_addresses, "log_level": 0})
        self.states = StateFaults(admin, kafka, self.supervisor, stand_ins)
        self.started_us = 0
        self._cluster = cluster
        self._stack = stack
        self._stand_ins = stand_ins
        self._kafka = kafka
        self._recorder = recorder
        self._loads = loads
        self._withdrawals = withdrawals
        self._replays = replays
        self._dead = dead
        self._clock = SystemClock()

    def begin(self) -> None:
        """Starts the load and the time of the run."""
        self.started_us = self._clock.now_us()
        for thread in (*self._loads, self._withdrawals, self._replays):
            thread.start()

    def end_load(self) -> list[str]:
        """Returns the ids that were published, with repetitions.

        Raises `CarpoolError` where a question may be missing in its topic.
        """
        for load in self._loads:
            load.end()
        self._withdrawals.end()
        self._replays.end()
        return [query_id for load in self._loads for query_id in load.sent]

    def now_s(self) -> float:
        return (self._clock.now_us() - self.started_us) / 1_000_000

    def published(self) -> int:
        return sum(len(load.sent) for load in self._loads) + self._replays.replayed

    def answered(self) -> int:
        return self._recorder.distinct(ANSWERS.name)

    def in_flight(self, member: str) -> int:
        if member in self._stand_ins:
            return self._stand_ins[member].in_flight()
        return int(self._stack[member].metric("carpool_units_in_flight"))

    def transaction(self, member: str) -> DescribedTransaction | None:
        group = self._kafka.group_of(member.partition("-")[0])
        # Not through the proxies: a broken network hides nothing from the injector.
        return describe_transaction(self._cluster.own_addresses, transactional_id(group, member))

    def brokers_are_whole(self) -> bool:
        names = [name for name in self.supervisor.processes if name.startswith(BROKER)]
        all_up = all(self.supervisor.is_up(name) for name in names)
        return all_up and self._cluster.missing_copies() == 0

    def is_done(self) -> bool:
        """Whether all questions were sent and answered or removed, and all letters replayed."""
        left, removed = self.published() - self.answered(), self.states.removed
        if any(load.is_alive() for load in self._loads) or left > len(removed):
            return False
        gone = removed.keys() - self._answered_places() if removed else set[str]()
        dead = self._dead - {removed[place] for place in gone}
        return left <= len(gone) and self._replays.replayed >= len(dead)

    def _answered_places(self) -> set[str]:
        records = self._recorder.records(ANSWERS.name)
        answers = (decode(Answer, record.value, record.headers) for record in records)
        return {answer.source.place for answer in answers if answer.source is not None}

    def step(self) -> None:
        """Steps the supervisor and the faults in progress, and waits for a moment."""
        now_s = self.now_s()
        self.network.step(now_s)
        self.states.step(now_s)
        self.supervisor.step(now_s)
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


def members() -> list[str]:
    """Returns the names of the services' processes: their instance ids too."""
    return [name for service in SERVICES for name in member_names(service, MEMBERS)]


def broker_names(count: int) -> tuple[str, ...]:
    """Returns the names of the brokers."""
    return tuple(f"{BROKER}-{number}" for number in range(1, count + 1))


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


def _supervised_stand_ins(stand_ins: Mapping[str, LlmStandIn]) -> Iterator[SupervisedProcess]:
    for name, each in stand_ins.items():
        yield SupervisedProcess(name=name, process=each, start=each.start, is_up=each.is_up)

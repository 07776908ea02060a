"""Grouper, searcher and generator with their real loops on one memory broker; any can be killed.

The services and their threads are real. The clock moves only when it is read, and there is no LLM:
two runs of the same queries give the same answers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from carpool.disk.settings import IndexSettings
from carpool.embedding import EmbeddingSettings
from carpool.errors import AbortedError
from carpool.intakes import group_intake, query_intake, retrieval_intake
from carpool.loop.delivery.delivery import LoopParts
from carpool.loop.delivery.exactly_once import ExactlyOnceDelivery
from carpool.loop.loop import Loop
from carpool.loop.priority.intake_queues import Intake, PriorityClass
from carpool.loop.stage import Stage
from carpool.telemetry.metrics import Metrics
from carpool.workflow.load import load_workflows
from carpool.workflow.program import NextSteps, ProgramProcess, Ran, RunRequest
from carpool.workflow.settings import WorkflowSettings
from carpool.workflow.workflows import Workflows
from generator.dedup.stage import DedupStage
from generator.service import build_stage as build_generator
from generator.settings import GeneratorSettings, LlmSettings
from grouper.build import load_work
from grouper.service import GrouperStage
from grouper.settings import GrouperSettings
from schemas.topics import ANSWERS, GROUPS, QUERIES, QUERIES_DEAD, RETRIES, RETRIEVALS
from searcher.service import build_stage as build_searcher
from searcher.settings import SearcherSettings
from tests.clocks import HandClock
from tests.e2e.support import MODEL
from tests.memory_broker import (
    MemoryBroker,
    MemoryConsumer,
    MemoryProducer,
    MemoryTransactionalProducer,
)
from tests.memory_broker.table_log import MemoryAnswersLog
from tests.rig.steps import (
    CONSUMER,
    IN_FLIGHT,
    LISTENER,
    PRODUCER,
    SINK,
    STAGE,
    KilledError,
    Steps,
    watched,
)
from tests.waiting import wait_until

PARTITIONS = 2
WORKFLOW = WorkflowSettings(modules=str(Path(__file__).parent / "kinds_of_steps.py"))


class LastingProcess:
    """A child process of a module that all lives of a service use, whatever kills them."""

    def __init__(self, process: ProgramProcess) -> None:
        self._process = process

    def submit(
        self, request: RunRequest, then: Callable[[Ran], None], is_wanted: Callable[[], bool]
    ) -> None:
        def follow(ran: Ran) -> None:
            with suppress(KilledError):  # the service is dead, and the thread is not its own
                then(ran)

        self._process.submit(request, follow, is_wanted)

    def run(self, request: RunRequest) -> NextSteps:
        return self._process.run(request)


@cache
def workflows() -> Workflows:
    """The built-in programs, and those of every kind of step."""
    loaded = load_workflows(WORKFLOW)
    programs = {
        key: replace(each, process=each.process and LastingProcess(each.process))
        for key, each in loaded.programs.items()
    }
    return replace(loaded, programs=programs)


POSITIONS = {"assign", "committed"}
PARTIALS = "rag.answers.partial.v1"
Answered = tuple[str, str, tuple[str, ...]]
"""(query id, status, ids of what was retrieved)."""


@dataclass(frozen=True)
class Service:
    """The parts of the loop of a service."""

    name: Any
    intake: Intake[Any]
    build: Callable[[Pipeline, Metrics], Stage[Any]]


SERVICES = {
    service.name: service
    for service in (
        Service(
            "grouper",
            replace(query_intake(), extra_classes=(PriorityClass(topic=RETRIES.name),)),
            lambda pipeline, metrics: GrouperStage(
                settings=GrouperSettings(),
                load=lambda: load_work(
                    GrouperSettings(),
                    IndexSettings(dir=str(pipeline.index)),
                    EmbeddingSettings(model=MODEL),
                    metrics,
                    pipeline.clock,
                    lanes=PARTITIONS,
                    needs_horizon=lambda _: True,
                ),
                metrics=metrics,
                clock=pipeline.clock,
                workflows=workflows(),
            ),
        ),
        Service(
            "searcher",
            group_intake(),
            lambda pipeline, metrics: build_searcher(
                SearcherSettings(),
                IndexSettings(dir=str(pipeline.index)),
                metrics,
                pipeline.clock,
            ),
        ),
        Service(
            "generator",
            retrieval_intake(),
            lambda pipeline, metrics: build_generator(
                GeneratorSettings(), LlmSettings(engine="none"), metrics, pipeline.clock
            ),
        ),
    )
}


class AbortedOnce:
    """A producer whose transaction is aborted once."""

    def __init__(self, producer: Any, aborts: list[str], service: str) -> None:
        self._producer = producer
        self._aborts = aborts
        self._service = service

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def send_offsets(self, *arguments: Any) -> None:
        if self._service in self._aborts:
            self._aborts.remove(self._service)
            raise AbortedError("the coordinator moved")
        self._producer.send_offsets(*arguments)


class Member:
    """One life of one service."""

    def __init__(
        self, pipeline: Pipeline, service: Service, steps: Steps, instance_id: str
    ) -> None:
        group = f"carpool-{service.name}"
        broker, metrics = pipeline.broker, Metrics()
        self.steps = steps
        self.instance_id = instance_id
        self.service = service
        self.consumer = MemoryConsumer(broker, group, own_instance_id=instance_id)
        self.stage = service.build(pipeline, metrics)
        if service.name == "generator":
            reader = MemoryAnswersLog(broker)
            self.stage = DedupStage(
                self.stage, reader, GeneratorSettings(), metrics, pipeline.clock
            )

        def make_delivery(context: LoopParts) -> ExactlyOnceDelivery:
            of_loop = context.in_flight
            of_loop.positions = watched(of_loop.positions, steps, "in_flight", POSITIONS)
            producer = MemoryTransactionalProducer(broker, f"{group}-{instance_id}")
            return ExactlyOnceDelivery(
                replace(
                    context,
                    in_flight=watched(context.in_flight, steps, "in_flight", IN_FLIGHT),
                ),
                producer=watched(
                    AbortedOnce(producer, pipeline.aborts, service.name)
                    if instance_id != "other"
                    else cast(Any, producer),
                    steps,
                    "producer",
                    PRODUCER,
                ),
                make_hint_producer=lambda: MemoryProducer(broker),
                instance_id=instance_id,
                commit_interval_ms=0,
            )

        self.loop = Loop[Any](
            name=service.name,
            group=group,
            intake=service.intake,
            stage=watched(self.stage, steps, "stage", STAGE),
            consumer=watched(self.consumer, steps, "consumer", CONSUMER),
            make_delivery=make_delivery,
            clock=pipeline.clock,
            metrics=metrics,
        )
        self.loop.taking.in_flight = watched(self.loop.in_flight, steps, "in_flight", IN_FLIGHT)

    def start(self) -> None:
        """As `Loop.start`, with watched callers."""
        watched(self.stage, self.steps, "stage", STAGE).start(
            watched(self.loop.sink, self.steps, "sink", SINK)
        )
        self.loop.delivery.start()
        listener = watched(self.loop.taking, self.steps, "loop", LISTENER)
        topic, *others = self.service.intake.topics
        self.loop._consumer.inner.subscribe(topic, listener, tuple(others))

    def stop(self) -> None:
        """Drains and ends, as after SIGTERM."""
        self.loop.drain(self.loop.last_step_us + 10**9)
        self.loop.close()

    def bury(self) -> None:
        """Ends what a kill leaves: the membership and threads."""
        self.steps.is_killed = True
        self.consumer.crash()
        self.stage.close()


class Pipeline:
    """The broker and a member of each service."""

    def __init__(self, index: Path, steps: Mapping[str, Steps]) -> None:
        """`steps`: of the first life of each service that is watched."""
        self.index = index
        self.clock = HandClock(step_us=100)
        topics = [
            each.name for each in (QUERIES, QUERIES_DEAD, RETRIES, GROUPS, RETRIEVALS, ANSWERS)
        ]
        self.broker = MemoryBroker(self.clock, dict.fromkeys([*topics, PARTIALS], PARTITIONS))
        self.aborts: list[str] = []
        self.kills = 0
        self.members = {name: self._life(name, steps.get(name, Steps())) for name in SERVICES}

    def _life(self, name: str, steps: Steps, instance_id: str = "one") -> Member:
        while True:
            member = Member(self, SERVICES[name], steps, instance_id)
            try:
                member.start()
            except KilledError:
                self.kills += 1
                member.bury()
                steps = Steps()
            else:
                return member

    def turn(self, until: Callable[[], bool]) -> None:
        """Steps all services until a condition is true; a killed service starts again."""

        def stepped() -> bool:
            if until():
                return True
            for name, member in self.members.items():
                self._step(name, member)
            return False

        wait_until(stepped, self.answered, every_s=0.0002)

    def _step(self, name: str, member: Member) -> None:
        try:
            if not member.steps.is_killed:
                member.loop.step()
        except KilledError:
            assert member.steps.is_killed
        if member.steps.is_killed:
            self._restart(name)
        assert member.loop.failure is None, member.loop.failure

    def rebalance(self) -> None:
        """Moves the first partition of each service to a second member and back."""
        for name in SERVICES:
            second = self._life(name, Steps(), instance_id="two")

            def both(second: Member = second, name: str = name) -> None:
                second.loop.step()
                self._step(name, self.members[name])

            self.broker.assign(
                f"carpool-{name}", {0: second.consumer, 1: self.members[name].consumer}
            )
            for _ in range(20):
                both()
            second.stop()
            for _ in range(20):
                self._step(name, self.members[name])

    def restart_with(self, index: Path, *names: str) -> None:
        """Stops these services, or all, and starts them with another index."""
        self.index = index
        for name in names or SERVICES:
            self.members[name].stop()
            self.members[name] = self._life(name, Steps())

    def add(self, name: str, instance_id: str) -> Member:
        """Starts a second member of a service, which the test steps and stops."""
        return self._life(name, Steps(), instance_id)

    def _restart(self, name: str) -> None:
        self.kills += 1
        self.members[name].bury()
        self.members[name] = self._life(name, Steps())

    def stop(self) -> None:
        """Stops all services; one that is killed meanwhile starts again and is stopped too."""
        for name in SERVICES:
            while True:
                try:
                    self.members[name].stop()
                    break
                except KilledError:
                    self._restart(name)

    def publish(self, *bodies: dict[str, object] | bytes) -> None:
        """Publishes queries, spread over the partitions."""
        for number, body in enumerate(bodies):
            value = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.broker.append(QUERIES.name, value, partition=number % PARTITIONS)

    def answered(self) -> Counter[Answered]:
        """Returns what a reader of committed records finds in the answers."""
        answers = [
            json.loads(message.value or b"") for message in self.broker.records(ANSWERS.name)
        ]
        return Counter(
            (
                answer["query_id"],
                answer["status"],
                tuple(hit["id"] for hit in answer.get("retrieved") or ()),
            )
            for answer in answers
        )

"""A stage that a test controls, and a loop around it on the broker in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from carpool.intakes import query_intake
from carpool.kafka.checks import DeliveryName
from carpool.kafka.commit_metadata import head_of, with_head
from carpool.kafka.fencing import transactional_id
from carpool.kafka.records import Output, TopicPartition
from carpool.loop.delivery.at_least_once import AtLeastOnceDelivery
from carpool.loop.delivery.delivery import Delivery, LoopParts
from carpool.loop.delivery.exactly_once import ExactlyOnceDelivery
from carpool.loop.loop import Loop
from carpool.loop.priority.intake_queues import PriorityClass
from carpool.loop.stage import Credit, Done, Sink, Unit
from carpool.origins import read_query
from carpool.telemetry.metrics import Metrics
from schemas.query import Query
from schemas.record import Headers
from schemas.topics import GROUPS, QUERIES, QUERIES_BATCH, RETRIES, RETRIEVALS, RETRIEVALS_BATCH
from tests.clocks import HandClock
from tests.memory_broker import (
    MemoryBroker,
    MemoryConsumer,
    MemoryProducer,
    MemoryTransactionalProducer,
)

GROUP = "carpool-test"


class HandStage:
    """Collects units; the test completes their parts in the order it likes."""

    def __init__(self, credit: int = 1_000) -> None:
        self.units: list[Unit[Query]] = []
        self.revoked: list[frozenset[int]] = []
        self.credit_records = credit
        self.ticks: list[int] = []
        self.draining = False
        self.sink: Sink | None = None

    def start(self, sink: Sink) -> None:
        self.sink = sink

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Nothing to prepare."""

    def credit(self) -> Credit:
        return Credit(records=self.credit_records - len(self.units), size_bytes=1_000_000)

    def offer(self, unit: Unit[Query], now_us: int) -> None:
        self.units.append(unit)

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        self.ticks.append(waiting)
        return None

    def revoke(self, unit_ids: frozenset[int], partitions: frozenset[TopicPartition]) -> None:
        self.revoked.append(unit_ids)
        self.units = [unit for unit in self.units if unit.id not in unit_ids]

    def drain(self, until_us: int) -> None:
        self.draining = True

    def not_ready(self) -> Sequence[str]:
        return ()

    def notes(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        """Nothing to close."""

    def unit(self, text: str) -> Unit[Query]:
        return next(unit for unit in self.units if unit.record.text == text)

    def finish(self, *texts: str, part: int = 0) -> None:
        """Completes one part of each of these units, together, with one output each."""
        units = [self.unit(text) for text in texts]
        assert self.sink is not None
        self.sink.done(
            Done(
                parts=tuple((unit.id, part) for unit in units),
                outputs=tuple(result(f"{unit.record.text}/{part}") for unit in units),
            )
        )


def result(text: str) -> Output:
    return Output(topic=GROUPS.name, key=text.encode(), value=text.encode())


class SteppedAtLeastOnce(AtLeastOnceDelivery):
    """A delivery without its thread: tests step it."""

    def start(self) -> None:
        """Nothing to start."""


class SteppedExactlyOnce(ExactlyOnceDelivery):
    """A delivery without its thread: tests step it."""

    def start(self) -> None:
        self._producer.start()


class Bench:
    """A broker in memory, and loops on it that a test steps: no threads, no waiting."""

    delivery: DeliveryName = "at_least_once"
    topic = QUERIES.name
    headers: Headers = ()
    """Of what a test publishes."""

    def __init__(self, partitions: int = 2, topics: dict[str, int] | None = None) -> None:
        self.clock = HandClock(step_us=1)
        self.metrics = Metrics()  # of the last member
        self.members = 0
        self.broker = MemoryBroker(
            self.clock,
            {
                QUERIES.name: partitions,
                RETRIES.name: partitions,
                GROUPS.name: 1,
                RETRIEVALS.name: 1,
                "rag.queries.v1.dlq": partitions,
                **(topics or {}),
            },
        )

    def loop(
        self,
        stage: HandStage,
        *,
        parts: Callable[[Query], int] = lambda _: 1,
        weight: int = 1,
        extra_classes: tuple[PriorityClass, ...] = (),
        is_stepped: bool = True,
    ) -> tuple[Loop[Query], MemoryConsumer]:
        """Starts a loop as the next member of the group; else its test runs it, with threads."""
        self.members += 1
        self.metrics = Metrics()
        instance_id = f"member-{self.members}"
        is_exact = self.delivery == "exactly_once"
        consumer = (
            MemoryConsumer(self.broker, GROUP, own_instance_id=instance_id)
            if is_exact
            else MemoryConsumer(self.broker, GROUP)
        )

        def make_delivery(context: LoopParts) -> Delivery:
            if is_exact:
                make = SteppedExactlyOnce if is_stepped else ExactlyOnceDelivery
                return make(
                    context,
                    producer=self.producer(instance_id),
                    make_hint_producer=lambda: MemoryProducer(self.broker),
                    instance_id=instance_id,
                    commit_interval_ms=0,
                )
            make_plain = SteppedAtLeastOnce if is_stepped else AtLeastOnceDelivery
            return make_plain(
                context,
                make_producer=lambda: MemoryProducer(self.broker),
                make_hint_producer=lambda: MemoryProducer(self.broker),
                commit_interval_ms=0,
            )

        loop = Loop[Query](
            name="grouper",
            group=GROUP,
            intake=replace(
                query_intake(),
                topic=self.topic,
                decode=lambda message: read_query(message),
                parts=parts,
                weight=weight,
                extra_classes=extra_classes,
            ),
            stage=stage,
            consumer=consumer,
            make_delivery=make_delivery,
            clock=self.clock,
            metrics=self.metrics,
        )
        if is_stepped:
            loop.start()
        return loop, consumer

    def wait(self, loop: Loop[Query], us: int = 1_000_000) -> None:
        """Moves the clock past every pause, and steps the loop."""
        self.clock.sleep(us)
        turn(loop)

    def producer(self, instance_id: str) -> MemoryTransactionalProducer:
        return MemoryTransactionalProducer(self.broker, transactional_id(GROUP, instance_id))

    def publish(self, *texts: str, partition: int = 0) -> None:
        for text in texts:
            self.broker.append(self.topic, text.encode(), partition=partition, headers=self.headers)

    def results(self, topic: str = GROUPS.name) -> list[str]:
        return [(message.value or b"").decode() for message in self.broker.records(topic)]

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"carpool_{name}", labels)

    def committed(self, partition: int = 0) -> tuple[int | None, str]:
        """Returns offset and metadata, less the instance id; (None, "") where nothing was."""
        position = self.broker.committed(GROUP).get(TopicPartition(self.topic, partition))
        if position is None:
            return None, ""
        head = head_of(position.metadata)
        runs = with_head(position.metadata, head._replace(instance_id=None))
        is_claim = head.instance_id is not None and position.offset == 0 and not runs
        return (None, "") if is_claim else (position.offset, runs)


def turn(loop: Loop[Query], times: int = 3) -> None:
    """Steps the loop and its delivery; commits are served by the next step of the loop."""
    for _ in range(times):
        loop.step()
        for _ in range(2):
            loop.delivery.step(0)
    loop.step()
    loop.in_flight.check_integrity()


def with_taken(
    bench: Bench, *texts: str, credit: int = 1_000, parts: Callable[[Query], int] = lambda _: 1
) -> tuple[Bench, HandStage, Loop[Query], MemoryConsumer]:
    """Starts a loop that has taken these queries in."""
    stage = HandStage(credit)
    loop, consumer = bench.loop(stage, parts=parts)
    bench.publish(*texts)
    turn(loop)
    return bench, stage, loop, consumer


class Retries(Bench):
    """A bench whose loop reads what services write."""

    topic = RETRIES.name
    headers = (("rag-origin", b"rag.queries.v1/0/7/0"),)


class Exact(Bench):
    """A bench whose loops deliver exactly once."""

    delivery = "exactly_once"


class TwoClasses(Bench):
    """A bench whose loop reads the class `batch` too."""

    def __init__(self) -> None:
        super().__init__(topics={QUERIES_BATCH.name: 2, RETRIEVALS_BATCH.name: 1})

    def both(
        self,
        stage: HandStage,
        unfinished_max: int | None = None,
    ) -> tuple[Loop[Query], MemoryConsumer]:
        batch = PriorityClass(topic=QUERIES_BATCH.name, unfinished_max=unfinished_max)
        return self.loop(stage, weight=16, extra_classes=(batch,))

    def publish_batch(self, count: int) -> None:
        for number in range(count):
            self.broker.append(QUERIES_BATCH.name, f"batch {number}".encode(), partition=number % 2)

"""A service that copies records from one topic to the next: the loop and its delivery alone."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from carpool.clock import SystemClock
from carpool.errors import CarpoolError
from carpool.kafka.client_config import client_config, producer_config
from carpool.kafka.records import Message, Output, TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.loop.delivery.factory import make_consumer, make_delivery
from carpool.loop.loop import Loop
from carpool.loop.priority.intake_queues import Intake
from carpool.loop.stage import Credit, Done, Sink, Unit
from carpool.telemetry.metrics import Metrics

VALUE = bytes(200)
FLUSH_S = 60.0


class CopyStage:
    """Finishes each record immediately, with one output."""

    def __init__(self, target: str, in_flight: int) -> None:
        self._target = target
        self._in_flight_max = in_flight
        self._sink: Sink | None = None
        self.loop: Loop[Any] | None = None

    def start(self, sink: Sink) -> None:
        self._sink = sink

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Nothing to prepare."""

    def credit(self) -> Credit:
        in_flight = 0 if self.loop is None else self.loop.in_flight.units
        return Credit(records=self._in_flight_max - in_flight, size_bytes=1 << 30)

    def offer(self, unit: Unit[Any], now_us: int) -> None:
        assert self._sink is not None
        output = Output(topic=self._target, key=unit.message.key, value=VALUE)
        self._sink.done(Done(parts=unit.owed, outputs=(output,)))

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        return None

    def revoke(self, unit_ids: frozenset[int], partitions: frozenset[TopicPartition]) -> None:
        """Everything is finished."""

    def drain(self, until_us: int) -> None:
        """Nothing more is finished."""

    def not_ready(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        """Nothing to close."""


def copy_loop(settings: KafkaSettings, *, group: str, source: str, in_flight: int) -> Loop[Any]:
    """Returns a loop that copies `source` to `SOURCE.copy`, exactly once.

    `in_flight`: records in it, finished or not.
    """
    stage, clock = CopyStage(copy_of(source), in_flight), SystemClock()
    stage.loop = Loop(
        name="grouper",
        group=group,
        intake=Intake(topic=source, decode=_as_it_is, bad_input="stop"),
        stage=stage,
        consumer=make_consumer(settings, group, clock, "exactly_once"),
        make_delivery=make_delivery(settings, group, "exactly_once"),
        clock=clock,
        metrics=Metrics(),
        finished_bytes_max=1 << 30,
    )
    return stage.loop


def copy_of(topic: str) -> str:
    """Returns the topic that the records of `topic` are copied to."""
    return f"{topic}.copy"


def make_topics(settings: KafkaSettings, source: str, partitions: int) -> None:
    """Makes a topic and that of its copies."""
    admin = AdminClient(client_config(settings))
    topics = [
        NewTopic(name, num_partitions=partitions, replication_factor=1)
        for name in (source, copy_of(source))
    ]
    for future in admin.create_topics(topics).values():
        future.result()


def _as_it_is(message: Message) -> Any:
    return message


class CopyLoad(threading.Thread):
    """Publishes numbered records at a steady rate, to one partition after another."""

    def __init__(
        self, settings: KafkaSettings, topic: str, *, partitions: int, rate_per_s: float
    ) -> None:
        super().__init__(name="load", daemon=True)
        self._producer = Producer(producer_config(settings))
        self._topic, self._partitions, self._rate_per_s = topic, partitions, rate_per_s
        self._ending = threading.Event()
        self.published = 0

    def run(self) -> None:
        for number in itertools.count():
            if self._ending.wait(1 / self._rate_per_s):
                return
            key = str(number).encode()
            self._producer.produce(self._topic, VALUE, key, partition=number % self._partitions)
            self._producer.poll(0)
            self.published += 1

    def end(self) -> set[str]:
        """Ends the load; returns the keys when all are acknowledged. Raises `CarpoolError`."""
        self._ending.set()
        self.join()
        if left := self._producer.flush(FLUSH_S):
            raise CarpoolError(f"{left} records were not acknowledged")
        return set(map(str, range(self.published)))

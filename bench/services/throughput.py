"""The run of `carpool bench throughput`: how many records a second one loop carries.

The stage copies each record, so a row measures the loop, its delivery and the broker. Each row has
topics, a group and a loop of its own on the same broker; the rows are compared with each other.
"""

from __future__ import annotations

import time

import msgspec
from confluent_kafka import Producer

from bench.core.copy_loop import VALUE, CopyLoop, make_topics
from bench.core.kafka import fresh_folder, kafka_settings
from bench.core.run import begin_services
from bench.services.options import ThroughputOptions
from carpool.errors import CarpoolError
from carpool.kafka.checks import DeliveryName
from carpool.kafka.client_config import producer_config
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KAFKA_JAVA, KafkaServer

LOOK_S = 0.02
ROW_S = 300.0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one row measures. `in_flight`: records in the service, finished or not."""

    delivery: DeliveryName = "exactly_once"
    partitions: int = 4
    in_flight: int = 10_000


WARM_UP = "warm-up"
ROWS = {
    WARM_UP: Row(),
    "at least once": Row(delivery="at_least_once"),
    "exactly once": Row(),
    "exactly once, 100 partitions": Row(partitions=100),
    "exactly once, 500 in flight": Row(in_flight=500),
    "exactly once, 40,000 in flight": Row(in_flight=40_000),
}


def run(options: ThroughputOptions) -> bool:
    """Runs the benchmark; returns True. Raises `CarpoolError` where a record is not copied."""
    run = begin_services("throughput", options)
    per_s: dict[str, float] = {}
    with (
        fresh_folder(run.folder / "broker") as folder,
        KafkaServer(folder, java=KAFKA_JAVA) as server,
    ):
        settings = kafka_settings(run.settings, bootstrap=server.bootstrap)
        for number, (name, row) in enumerate(ROWS.items()):
            run.note(name)
            per_s[name] = measure(settings, row, f"throughput.{number}", options.records)
    per_s.pop(WARM_UP)
    return run.finish({"records a second": per_s}, promises={}, results=per_s)


def measure(settings: KafkaSettings, row: Row, topic: str, records: int) -> float:
    """Fills a topic, runs a loop over it, and returns records a second. Blocks."""
    make_topics(settings, topic, row.partitions)
    _fill(settings, topic, row.partitions, records)
    running = CopyLoop(
        settings, delivery=row.delivery, group=topic, source=topic, in_flight=row.in_flight
    )
    running.start()
    while running.written() == 0:
        time.sleep(LOOK_S)
    began_s, began_with = time.monotonic(), running.written()
    while running.written() < records:
        if time.monotonic() - began_s > ROW_S:
            raise CarpoolError(f"only {running.written():,} of {records:,} in {ROW_S:g} s")
        time.sleep(LOOK_S)
    seconds = time.monotonic() - began_s
    running.stop()
    return (records - began_with) / seconds


def _fill(settings: KafkaSettings, topic: str, partitions: int, records: int) -> None:
    producer = Producer(producer_config(settings))
    for number in range(records):
        at = {"partition": number % partitions, "key": str(number).encode(), "value": VALUE}
        while True:
            try:
                producer.produce(topic, **at)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()

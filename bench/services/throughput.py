"""The run of `carpool bench throughput`: how many records a second one loop carries.

The stage copies each record, so a row measures the loop, its delivery and the broker. Each row has
topics, a group and a loop of its own on the same broker; the rows are compared with each other.
"""

from __future__ import annotations

import resource
import time

import msgspec
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from bench.core.copy_loop import VALUE, CopyLoop, make_topics
from bench.core.kafka import fresh_folder, kafka_settings
from bench.core.services_run import ServicesRun, begin_run
from bench.services.options import ThroughputOptions
from carpool.kafka.checks import DeliveryName
from carpool.kafka.client_config import producer_config
from carpool.kafka.librdkafka.committed import committed_so_far
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KAFKA_JAVA, KafkaServer

LOOK_S = 0.02
ROW_S = 300.0
AGAIN_S = 15.0
"""How long the next member reads; it passes over complete records in seconds."""
GROUP = "throughput"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one row measures. `in_flight`: records in the service, finished or not.

    `holds_first`: the first record is finished only after all others.
    """

    name: str
    delivery: DeliveryName
    partitions: int
    records: int
    in_flight: int = 10_000
    holds_first: bool = False


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a row. `metadata_bytes`: of the longest metadata of a committed offset.

    `memory_mb`: growth of this process at its peak. `worked_on_again`: where a record was held
    back, the records that the next member offers to its stage; 1 is that record.
    """

    row: Row
    seconds: float
    metadata_bytes: int
    memory_mb: float
    worked_on_again: int | None = None

    @property
    def per_s(self) -> float:
        return self.row.records / self.seconds


def run(options: ThroughputOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Raises `CarpoolError`."""
    run = begin_run("throughput", options)
    found: dict[str, Measured] = {}
    with (
        fresh_folder(run.folder / "broker") as folder,
        KafkaServer(folder, java=KAFKA_JAVA) as server,
    ):
        settings = kafka_settings(run.settings, bootstrap=server.bootstrap)
        for number, row in enumerate(rows(options.records)):
            run.note(row.name)
            found[row.name] = measure(run, settings, row, number)
    ratios = compared(list(found.values()))
    return run.finish(
        lambda console: show(console, list(found.values()), ratios),
        promises={
            "the next member repeats nothing that completed after the record held back": all(
                each.worked_on_again in (None, 1) for each in found.values()
            )
        },
        results={"rows": list(found.values()), "ratios": ratios},
    )


def rows(records: int) -> list[Row]:
    """Returns the rows; the first one only warms the broker up."""
    exact: DeliveryName = "exactly_once"
    plain: DeliveryName = "at_least_once"
    return [
        Row(name="warm-up", delivery=exact, partitions=4, records=records),
        Row(name="at least once, 4 partitions", delivery=plain, partitions=4, records=records),
        Row(name="exactly once, 4 partitions", delivery=exact, partitions=4, records=records),
        Row(name="exactly once, 100 partitions", delivery=exact, partitions=100, records=records),
        Row(
            name="exactly once, 500 in flight",
            delivery=exact,
            partitions=4,
            records=records,
            in_flight=500,
        ),
        Row(
            name="exactly once, 40,000 in flight",
            delivery=exact,
            partitions=4,
            records=records,
            in_flight=40_000,
        ),
        Row(name="exactly once, 1 partition", delivery=exact, partitions=1, records=2 * records),
        Row(
            name="exactly once, 1 partition, its first record held back",
            delivery=exact,
            partitions=1,
            records=2 * records,
            holds_first=True,
        ),
    ]


def measure(run: ServicesRun, settings: KafkaSettings, row: Row, number: int) -> Measured:
    """Fills a topic, runs a loop over it, and returns how long that took. Blocks."""
    source, group = f"throughput.{number}", f"{GROUP}-{number}"
    make_topics(settings, source, row.partitions)
    _fill(settings, source, row)
    before_mb = _peak_mb()
    running = _started(settings, row, group, source)
    wanted = row.records - row.holds_first
    while running.written() == 0:
        time.sleep(LOOK_S)
    began_s, began_with = time.monotonic(), running.written()
    while running.written() < wanted:
        if time.monotonic() - began_s > ROW_S:
            run.note(f"only {running.written():,} of {wanted:,} in {ROW_S:g} s")
            break
        time.sleep(LOOK_S)
    seconds = (time.monotonic() - began_s) * row.records / (running.written() - began_with)
    memory_mb = _peak_mb() - before_mb
    metadata = _longest_metadata(settings, group, source, row.partitions)
    running.stop()
    worked_on_again = None
    if row.holds_first:
        again = _started(settings, row, group, source)
        time.sleep(AGAIN_S)
        worked_on_again = again.stage.accepted
        again.stop()
    return Measured(
        row=row,
        seconds=seconds,
        metadata_bytes=len(metadata),
        memory_mb=memory_mb,
        worked_on_again=worked_on_again,
    )


def _started(settings: KafkaSettings, row: Row, group: str, source: str) -> CopyLoop:
    running = CopyLoop(
        settings,
        delivery=row.delivery,
        group=group,
        source=source,
        in_flight=row.in_flight,
        holds_first=row.holds_first,
    )
    running.start()
    return running


def compared(measured: list[Measured]) -> dict[str, float]:
    """Returns the ratios of rows, by what they say."""
    per_s = {each.row.name: each.per_s for each in measured}

    def ratio(one: str, other: str) -> float:
        return round(per_s[one] / per_s[other], 3)

    return {
        "exactly once / at least once, 4 partitions": ratio(
            "exactly once, 4 partitions", "at least once, 4 partitions"
        ),
        "100 / 4 partitions, exactly once": ratio(
            "exactly once, 100 partitions", "exactly once, 4 partitions"
        ),
        "40,000 / 500 in flight": ratio(
            "exactly once, 40,000 in flight", "exactly once, 500 in flight"
        ),
        "a record held back / none": ratio(
            "exactly once, 1 partition, its first record held back", "exactly once, 1 partition"
        ),
    }


def show(console: Console, measured: list[Measured], ratios: dict[str, float]) -> None:
    """Prints the rows and their ratios."""
    table = Table(
        "row", "records a second", "metadata, bytes", "memory grew by, MB", "worked on again"
    )
    for each in measured:
        again = "-" if each.worked_on_again is None else str(each.worked_on_again)
        table.add_row(
            each.row.name,
            f"{each.per_s:,.0f}",
            str(each.metadata_bytes),
            f"{each.memory_mb:.0f}",
            again,
        )
    console.print(table)
    for name, value in ratios.items():
        console.print(f"{name}: {value:.2f}")


def _fill(settings: KafkaSettings, topic: str, row: Row) -> None:
    producer = Producer(producer_config(settings))
    for number in range(row.records):
        at = {"partition": number % row.partitions, "key": str(number).encode(), "value": VALUE}
        while True:
            try:
                producer.produce(topic, **at)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def _longest_metadata(settings: KafkaSettings, group: str, topic: str, partitions: int) -> str:
    places = [TopicPartition(topic, number) for number in range(partitions)]
    return max(
        (raw.metadata or "" for raw in committed_so_far(settings, group, places).values()), key=len
    )


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024

"""The log of scans, `rag.scans.v1`, read as a table: a partition for each lane."""

from __future__ import annotations

from carpool.clock import Clock
from carpool.kafka.librdkafka.table_log import LibrdkafkaTableLog
from carpool.kafka.memory.broker import MemoryBroker
from carpool.kafka.memory.table_log import MemoryTableLog
from carpool.kafka.settings import KafkaSettings
from schemas.topics import GROUPS, SCANS


def scans_log(settings: KafkaSettings, clock: Clock) -> LibrdkafkaTableLog:
    """Returns the log of scans of a real broker."""
    return LibrdkafkaTableLog(
        settings,
        clock,
        topic=SCANS.name,
        same_partitions_as=GROUPS.name,
        name="scans",
        is_urgent=True,
    )


class MemoryScansLog(MemoryTableLog):
    """The log of scans of a broker in memory, for tests."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker, topic=SCANS.name, same_partitions_as=GROUPS.name)

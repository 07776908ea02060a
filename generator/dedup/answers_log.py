"""The log of answers, `rag.answers.v1`, read as a table.

Equal query ids must be in equal partitions of answers and retrievals: the member that owns a
partition of retrievals reads that partition of answers only.
"""

from __future__ import annotations

from carpool.clock import Clock
from carpool.kafka.librdkafka.table_log import LibrdkafkaTableLog
from carpool.kafka.memory.broker import MemoryBroker
from carpool.kafka.memory.table_log import MemoryTableLog
from carpool.kafka.settings import KafkaSettings
from schemas.topics import ANSWERS, RETRIEVALS


def answers_log(settings: KafkaSettings, clock: Clock) -> LibrdkafkaTableLog:
    """Returns the log of answers of a real broker."""
    return LibrdkafkaTableLog(
        settings,
        clock,
        topic=ANSWERS.name,
        same_partitions_as=RETRIEVALS.name,
        name="answer-ledger",
    )


class MemoryAnswersLog(MemoryTableLog):
    """The log of answers of a broker in memory, for tests."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker, topic=ANSWERS.name, same_partitions_as=RETRIEVALS.name)

"""Deletes processed records of topics between two services, which never expire."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
from confluent_kafka import KafkaException

from carpool.kafka.cluster import quiet_admin
from carpool.kafka.librdkafka.ask_brokers import reply
from carpool.kafka.raw_records import place_of, raw_partition
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from schemas.topics import TOPICS, UNTIL_PROCESSED

log = structlog.get_logger()

PURGE_S = 30.0
"""How often processed records are deleted."""
RECORDS_KEPT = 10_000
"""Processed records that a partition keeps, to be looked at."""
PURGED = frozenset(topic.name for topic in TOPICS if topic.retention_ms == UNTIL_PROCESSED)


class ProcessedRecordsPurge:
    """Deletes what a group has committed, except the last records of a partition.

    A failure is logged once; nothing else depends on it.
    """

    def __init__(
        self, settings: KafkaSettings, committed: Callable[[], Mapping[TopicPartition, int]]
    ) -> None:
        """`committed`: returns the committed offset of each assigned partition. Thread-safe."""
        self._settings = settings
        self._committed = committed
        self._purged: dict[TopicPartition, int] = {}
        self._trouble: str | None = None

    def step(self) -> None:
        """Deletes what may be deleted now. Blocks for the time-out of a request."""
        wanted = {
            at: offset - RECORDS_KEPT
            for at, offset in self._committed().items()
            if at.topic in PURGED and offset - RECORDS_KEPT > self._purged.get(at, 0)
        }
        if not wanted:
            return
        places = [raw_partition(self._settings, *each) for each in wanted.items()]
        trouble = None
        admin = quiet_admin(self._settings)  # without it, the futures would never end
        try:
            futures = admin.delete_records(
                places, request_timeout=self._settings.request_timeout_ms / 1_000
            )
            for place, future in futures.items():
                reply(future)
                at = place_of(self._settings, place)
                self._purged[at] = wanted[at]
        except KafkaException as error:
            trouble = error.args[0].str()
        if trouble is not None and trouble != self._trouble:
            log.warning(
                "processed records cannot be deleted, so their topic grows: allow Delete on it",
                topics=sorted({place.topic for place in places}),
                error=trouble,
            )
        self._trouble = trouble

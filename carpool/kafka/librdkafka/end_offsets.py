"""Asks the brokers for the ends of paused partitions, which are not fetched."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future

from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from carpool.kafka.client_config import client_config
from carpool.kafka.librdkafka.convert import StructlogBridge
from carpool.kafka.raw_records import place_of, raw_partition
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings

ASK_EVERY_S = 2.0


class EndOffsets:
    """Asks the brokers in the background, at most every two seconds. For one thread."""

    def __init__(self, settings: KafkaSettings) -> None:
        """Connects with the first request."""
        self._settings = settings
        self._admin: AdminClient | None = None
        self._ask_at_s = 0.0
        self._asked: dict[TopicPartition, Future[ListOffsetsResultInfo]] = {}
        self._ends: dict[TopicPartition, int] = {}

    def known(
        self, partitions: Iterable[TopicPartition], *, ask: bool
    ) -> dict[TopicPartition, int]:
        """Returns the last known end of each partition (committed records); may `ask` again.

        Never waits. An error keeps the previous value.
        """
        wanted = frozenset(partitions)
        for at in [at for at, future in self._asked.items() if future.done()]:
            future = self._asked.pop(at)
            if future.exception() is None:
                self._ends[at] = future.result().offset
        self._ends = {at: end for at, end in self._ends.items() if at in wanted}
        if ask and wanted and not self._asked and time.monotonic() >= self._ask_at_s:
            self._ask(wanted)
        return dict(self._ends)

    def _ask(self, partitions: frozenset[TopicPartition]) -> None:
        self._ask_at_s = time.monotonic() + ASK_EVERY_S
        if self._admin is None:
            self._admin = AdminClient(client_config(self._settings), logger=StructlogBridge())
        try:
            futures = self._admin.list_offsets(
                {raw_partition(self._settings, at): OffsetSpec.latest() for at in partitions},
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=self._settings.request_timeout_ms / 1_000,
            )
        except KafkaException:
            return
        self._asked = {place_of(self._settings, raw): each for raw, each in futures.items()}

    def close(self) -> None:
        """Ends the client and its open requests."""
        self._admin = None

"""Asks the brokers for the ends of paused partitions, which are not fetched."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import partial

from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from carpool.kafka.client_config import client_config
from carpool.kafka.librdkafka.convert import StructlogBridge
from carpool.kafka.raw_records import place_of, raw_partition
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings

ASK_EVERY_S = 2.0


class EndOffsets:
    """Asks the brokers in the background, at most every two seconds. `known` never waits."""

    def __init__(self, settings: KafkaSettings) -> None:
        """Connects with the first request."""
        self._settings = settings
        self._admin: AdminClient | None = None
        self._ask_at_s = 0.0
        self._ends = _KnownEnds()

    def known(
        self, partitions: Iterable[TopicPartition], *, ask: bool
    ) -> dict[TopicPartition, int]:
        """Returns the last known end of each partition (committed records); may `ask` again."""
        wanted = frozenset(partitions)
        found = self._ends.ends(wanted)
        if ask and wanted and self._ends.is_idle and time.monotonic() >= self._ask_at_s:
            self._ask(wanted)
        return found

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
        self._ends.await_all(
            {place_of(self._settings, raw): future for raw, future in futures.items()}
        )

    def close(self) -> None:
        """Ends the client and its open requests."""
        self._admin = None


class _KnownEnds:
    """The brokers' replies. Does not reference the client (see `admin_replies`)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[TopicPartition, int] = {}
        self._open = 0

    def ends(self, wanted: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
        with self._lock:
            self._ends = {at: end for at, end in self._ends.items() if at in wanted}
            return dict(self._ends)

    @property
    def is_idle(self) -> bool:
        return self._open == 0

    def await_all(self, futures: Mapping[TopicPartition, Future[ListOffsetsResultInfo]]) -> None:
        with self._lock:
            self._open += len(futures)
        for at, future in futures.items():
            future.add_done_callback(partial(self._receive, at))

    def _receive(self, at: TopicPartition, future: Future[ListOffsetsResultInfo]) -> None:
        """Runs on a thread of the client. An error keeps the previous value."""
        error = future.exception()
        with self._lock:
            self._open -= 1
            if error is None:
                self._ends[at] = future.result().offset

"""Reads a topic as a table: each partition to its end, then its new records, on one thread."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import structlog

from carpool.clock import Clock
from carpool.errors import CarpoolError, RetryableError
from carpool.kafka.records import Message
from carpool.kafka.topic_log import TopicLog
from carpool.worker import as_failure

log = structlog.get_logger()

POLL_S = 0.1
BATCH = 500
"""Maximum number of records in one call of the listener."""
RETRY_US = 1_000_000
CLOSE_TIMEOUT_S = 1.0


class TableListener(Protocol):
    """Receives the rows of a table, on the thread of the table.

    A subclass that waits for no partition and fetches nothing leaves two methods as they are.
    """

    def rows_read(self, messages: Sequence[Message]) -> None:
        """The next records, those of each partition in order. A later record of a key wins."""

    def partition_read(self, partition: int) -> None:
        """All records that the partition had when `read` was called were passed to `rows_read`."""
        return

    def row_fetched(self, request_id: int, offset: int, message: Message | None) -> None:
        """The result of `fetch`; None: the record is no longer in the topic."""
        return

    def table_failed(self, error: CarpoolError) -> None:
        """The topic cannot be read, and no retry helps."""


class _Request(NamedTuple):
    partition: int
    is_read: bool  # else it is forgotten


class TopicTable:
    """Owns a `TopicLog`. `read`, `forget`, `fetch`, `share` and `trouble` are thread-safe.

    No call but `close` blocks. If a partition comes back that was forgotten, only its new records
    are read. Failed calls are retried after a second; other partitions are read meanwhile.
    """

    def __init__(
        self,
        topic_log: TopicLog,
        listener: TableListener,
        clock: Clock,
        *,
        horizon_ms: int,
        rows_max: int,
    ) -> None:
        """`horizon_ms`: the age of the oldest records that are read.

        `rows_max`: at least so many records of a partition are read, if they are not older. Twice
        as many offsets are read, because every record may have a transaction marker.
        """
        self._log = topic_log
        self._listener = listener
        self._clock = clock
        self._horizon_ms = horizon_ms
        self._offsets_max = 2 * rows_max
        self._requested: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self._to_begin: dict[int, None] = {}
        self._fetches: deque[tuple[int, int, int]] = deque()  # id, partition, offset
        self._spans: dict[int, tuple[int, int]] = {}  # start and end of what was asked for
        self._followed: set[int] = set()
        self._left_at: dict[int, int] = {}  # positions of forgotten partitions
        self._is_open = False
        self.reads_older = False
        """Whether older records are read where none is in the horizon: the clock may be ahead."""
        self.trouble: str | None = None
        """Why the topic cannot be read at the moment."""
        self.share = 0.0
        """The share of the requested records that was read, from 0 to 1."""
        self._retry_at_us = 0
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"table {topic_log.topic}", daemon=True
        )

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def read(self, partitions: Sequence[int]) -> None:
        """Reads these partitions to the end that they have when the thread begins with them."""
        for partition in partitions:
            self._requested.put(_Request(partition, is_read=True))
        self._wake.set()

    def forget(self, partitions: Iterable[int]) -> None:
        """Stops reading these partitions."""
        for partition in partitions:
            self._requested.put(_Request(partition, is_read=False))
        self._wake.set()

    def fetch(self, request_id: int, partition: int, offset: int) -> None:
        """Fetches one record for `row_fetched`."""
        self._fetches.append((request_id, partition, offset))
        self._wake.set()

    def close(self) -> None:
        """Ends the thread. Blocks for up to a second."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_TIMEOUT_S)

    # All methods below run on the thread of the table.

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.step()
        except Exception as error:  # otherwise the listener would wait forever
            self._listener.table_failed(as_failure(error))
        finally:
            self._log.close()

    def step(self) -> None:
        """Begins requested partitions, polls once, and fetches requested records.

        The pause after trouble applies to requests to brokers only: followed partitions are fetched
        by the client in the background.
        """
        is_due = self._clock.now_us() >= self._retry_at_us
        self._serve_requests()
        try:
            trouble = self._begin() if is_due else None
            self._follow(0 if is_due and self._fetches else POLL_S)
            if is_due:
                self._fetch()
            if trouble is not None:
                raise trouble
        except RetryableError as error:
            self._pause(str(error))
        else:
            if is_due and self.trouble is not None:
                log.info("a table is read again", topic=self._log.topic)
                self.trouble = None

    def _pause(self, trouble: str) -> None:
        if trouble != self.trouble:
            log.warning("a table cannot be read; retrying", topic=self._log.topic, trouble=trouble)
        self.trouble = trouble
        self._retry_at_us = self._clock.now_us() + RETRY_US

    def _serve_requests(self) -> None:
        while not self._requested.empty():
            partition, is_read = self._requested.get()
            if is_read:
                self._to_begin[partition] = None
                continue
            self._to_begin.pop(partition, None)
            self._spans.pop(partition, None)
            if partition in self._followed:
                self._followed.discard(partition)
                self._left_at[partition] = self._log.position(partition)
                self._log.forget(partition)

    def _begin(self) -> RetryableError | None:
        """Begins requested partitions; returns why one of them cannot be begun."""
        if self._to_begin and not self._is_open:
            self._log.open()
            self._is_open = True
        trouble: RetryableError | None = None
        for partition in tuple(self._to_begin):
            try:
                self._begin_with(partition)
            except RetryableError as error:
                trouble = error
        return trouble

    def _begin_with(self, partition: int) -> None:
        end = self._log.end(partition)
        if partition in self._followed:
            start = self._log.position(partition)
        else:
            start = max(
                self._first_in_horizon(partition, end),
                end - self._offsets_max,
                self._left_at.get(partition, 0),
            )
            self._log.begin(partition, start)
            self._followed.add(partition)
        self._spans[partition] = start, end
        del self._to_begin[partition]

    def _first_in_horizon(self, partition: int, end: int) -> int:
        now_us, age_ms = self._clock.now_us() + self._clock.host_lead_us(), self._horizon_ms
        while True:
            first = self._log.first_since(partition, now_us // 1_000 - age_ms)
            if not (self.reads_older and first >= end > 0 and 0 < age_ms < now_us // 1_000):
                return first
            age_ms *= 2

    def _follow(self, wait_s: float) -> None:
        if not self._followed:
            self._wake.wait(POLL_S)
            self._wake.clear()
            return
        messages = self._log.poll(wait_s, BATCH)
        if messages:
            self._listener.rows_read(messages)
        self._count()
        for partition, (_, end) in tuple(self._spans.items()):
            # The embedded broker may report an end before the last record that it sends.
            if self._log.position(partition) >= end and len(messages) < BATCH:
                del self._spans[partition]
                self._listener.partition_read(partition)

    def _count(self) -> None:
        spans = self._spans.items()
        total = sum(end - start for _, (start, end) in spans)
        read = sum(self._log.position(partition) - start for partition, (start, _) in spans)
        self.share = min(1.0, read / total) if total else 0.0

    def _fetch(self) -> None:
        while self._fetches:
            request_id, partition, offset = self._fetches[0]
            message = self._log.fetch(partition, offset)
            self._fetches.popleft()
            self._listener.row_fetched(request_id, offset, message)

"""What a member of a group needs in addition to its client: a protocol, its membership, its
commits, counts of what waits, and a way to wake the threads that fetch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Literal

import structlog
from confluent_kafka import OFFSET_END, Consumer, IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as RawPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from carpool.clock import Clock
from carpool.kafka.client_config import client_config, consumer_config
from carpool.kafka.clients import CommitResult, Membership, Position
from carpool.kafka.librdkafka.ask_brokers import broker_config
from carpool.kafka.librdkafka.convert import StructlogBridge, raw_offsets, sort_error
from carpool.kafka.passed_through import flattened
from carpool.kafka.raw_records import place_of, raw_partition
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings

ASK_EVERY_S = 2.0
QUIET_S = 10.0
"""After so long without a record, the brokers are asked for the ends of the partitions: librdkafka
may stop fetching without an error.
"""
MEMBERSHIP_US = 200_000
"""Maximum age of the cached membership without a rebalance.

A request to librdkafka waits for its main thread, and confluent-kafka blocks all threads of the
interpreter meanwhile.
"""


class CachedMembership:
    """The membership of one consumer. For the polling thread only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: Membership | None = None
        self._until_us = 0
        self._none: Membership | None = None

    def joined(self, consumer: Consumer) -> None:
        """Stores the result before the group is joined: it names no member, so it is not used."""
        self._none = consumer.consumer_group_metadata()

    def forget(self) -> None:
        """Empties the cache."""
        self._known = None

    def of(self, consumer: Consumer | None, *, fresh: bool) -> Membership | None:
        """Returns group id, member id and generation or epoch; None while it is no member."""
        if consumer is None:
            return None
        now_us = self._clock.now_us()
        if fresh or self._known is None or now_us >= self._until_us:
            found: Membership = consumer.consumer_group_metadata()
            self._known = None if found == self._none else found
            self._until_us = now_us + MEMBERSHIP_US
        return self._known


class CommitRequests:
    """Commits one request after the other, without blocking. `add` is thread-safe."""

    def __init__(self, settings: KafkaSettings, group: str) -> None:
        self._settings = settings
        self._needed = f"Read on group {group}"
        self._waiting: deque[tuple[dict[TopicPartition, Position], CommitResult]] = deque()
        self._result: CommitResult | None = None

    def add(self, offsets: Mapping[TopicPartition, Position], on_result: CommitResult) -> None:
        """Queues a request."""
        self._waiting.append((dict(offsets), on_result))

    def drop_waiting(self) -> None:
        """Drops the requests that were not sent, without a result."""
        self._waiting.clear()

    def forget_sent(self) -> None:
        """Drops the result of the request that was sent."""
        self._result = None

    def send(self, consumer: Consumer) -> None:
        """Sends the next request, once the one before it has its result."""
        while self._waiting and self._result is None:
            offsets, self._result = self._waiting.popleft()
            try:
                consumer.commit(offsets=raw_offsets(self._settings, offsets), asynchronous=True)
            except KafkaException as error:
                self.done(error.args[0], [])

    def done(self, error: KafkaError | None, partitions: list[RawPartition]) -> None:
        """Delivers the result of a commit, inside `poll`; a blocking commit has no callback."""
        on_result, self._result = self._result, None
        if on_result is not None:
            failed = error or next((raw.error for raw in partitions if raw.error is not None), None)
            on_result(None if failed is None else sort_error(failed, self._needed))


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


class WaitingRecords:
    """What is known of the positions in the assigned partitions of a member. For one thread."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._ends = EndOffsets(settings)
        self._at_end: set[TopicPartition] = set()
        self._read_s = time.monotonic()
        self._passed: dict[TopicPartition, int] = {}
        """Before these offsets no record waits, whatever the position is."""

    def passed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Notes that no record waits before these offsets."""
        self._passed |= offsets

    def ended(self, at: TopicPartition, end: int) -> None:
        """Notes that a partition was read to its end."""
        self._at_end.add(at)
        self._passed[at] = end

    def read(self, at: TopicPartition) -> None:
        """Notes that a record was read."""
        self._read_s = time.monotonic()
        self._at_end.discard(at)

    def forget(self, gone: Collection[TopicPartition]) -> None:
        """Forgets partitions that were revoked."""
        self._at_end -= set(gone)
        self._passed = {at: offset for at, offset in self._passed.items() if at not in gone}

    def counts(
        self, consumer: Consumer, partitions: Collection[TopicPartition], *, ask: bool
    ) -> dict[TopicPartition, int]:
        """Returns the end of the log minus the position; 0 where the end was reached.

        Transaction markers are not records. `ask` the brokers for the ends: partitions are paused.
        """
        is_quiet = time.monotonic() - self._read_s > QUIET_S
        ends = self._ends.known(partitions, ask=ask or is_quiet)
        done = {at for at in self._at_end if ends.get(at, 0) <= self._passed.get(at, 0)}
        waiting = dict.fromkeys(sorted(partitions), 0)
        left = [raw_partition(self._settings, at) for at in waiting if at not in done]
        for raw in consumer.position(left):
            at = place_of(self._settings, raw)
            passed, end = max(raw.offset, self._passed.get(at, 0)), ends.get(at, 0)
            low, high = consumer.get_watermark_offsets(raw, cached=True) or (0, -1)
            waiting[at] = max(0, max(high, end) - max(passed, low))
        return waiting

    def close(self) -> None:
        """Ends the client that asks the brokers."""
        self._ends.close()


ASK_S = 0.1
"""Time-out of the request after a rebalance; fetching continues meanwhile."""


def wake(consumer: Consumer, settings: KafkaSettings) -> None:
    """Wakes the threads. Does not block.

    Setting the credentials, here to the same values, is the only call that wakes them. It sends
    nothing to the brokers.
    """
    consumer.set_sasl_credentials(settings.sasl_username, settings.sasl_password.value)


def wake_after_rebalance(consumer: Consumer, partitions: Sequence[RawPartition]) -> None:
    """Makes librdkafka fetch retained partitions immediately.

    librdkafka pauses all partitions during a rebalance. A request to a broker and its reply wake
    the thread of that broker. `wake` could be too early here, because librdkafka resumes the
    partitions later.
    """
    if partitions:
        ends = [RawPartition(each.topic, each.partition, OFFSET_END) for each in partitions]
        # The answer is not used; from a broker that does not answer, nothing can be fetched.
        with suppress(KafkaException):
            consumer.offsets_for_times(ends, ASK_S)


log = structlog.get_logger()

GroupProtocol = Literal["consumer", "classic"]

CLASSIC_ONLY = ("partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms")
"""Decided by the brokers under the consumer protocol; librdkafka rejects these settings."""

BROKER_SESSION_TIMEOUT = "group.consumer.session.timeout.ms"
"""The brokers' setting for it. Brokers that have this setting have the protocol."""


def choose_protocol(
    settings: KafkaSettings, admin: AdminClient, broker_ids: Iterable[int]
) -> GroupProtocol:
    """Returns the protocol that is set for librdkafka, or the newest of the brokers. Blocks.

    librdkafka retries forever, without an error, to join by a protocol that the brokers do not
    have. Raises `RetryableError` when no broker answers: a member with the other protocol would
    convert its group.
    """
    given = flattened(settings.librdkafka).get("group.protocol")
    if given is not None:
        return "classic" if given == "classic" else "consumer"
    config = broker_config(admin, broker_ids, settings.request_timeout_ms / 1_000)
    if config is None:
        log.info("the brokers' settings cannot be read; using the classic protocol")
        return "classic"
    timeout_ms = config.get(BROKER_SESSION_TIMEOUT)
    log.info(
        "brokers were asked for the consumer protocol (KIP-848)", session_timeout_ms=timeout_ms
    )
    return "classic" if timeout_ms is None else "consumer"


def member_config(settings: KafkaSettings, group: str, protocol: GroupProtocol) -> dict[str, Any]:
    """Returns the configuration of a group member that speaks this protocol."""
    config = consumer_config(settings, group)
    if protocol == "classic":
        return config
    # By range: each topic is shared by itself. The brokers' default counts partitions over all
    # topics, and may give one member all of the class that has work, and another all of the one
    # that has none.
    ours = {"group.protocol": "consumer", "group.remote.assignor": "range"}
    return {name: value for name, value in config.items() if name not in CLASSIC_ONLY} | ours

"""Where partitions that are ours now go on: what is committed, once no transaction holds it, and our claim (ADR 0007)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as RawPartition
from confluent_kafka.admin import AdminClient

from carpool.errors import CarpoolError, FencedError, RetryableError
from carpool.kafka.clients import FenceSlot, Position, TopicPartition, partitions_text
from carpool.kafka.librdkafka.convert import LEFT_BEHIND, StructlogBridge, raw_offsets, sort_error
from carpool.kafka.settings import KafkaSettings, client_config
from carpool.kafka.takeover import TAKEOVER_WAIT_S, claims, slots_to_fence

log = structlog.get_logger()

RETRY_S = 0.05
UNFINISHED = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
"""How a look-up of offsets ends that a transaction holds, or that the broker had no time for."""


def read_committed(
    consumer: Consumer, partitions: Sequence[RawPartition], timeout_s: float
) -> dict[TopicPartition, Position]:
    """Returns what is committed for these partitions. Raises `RetryableError` when that is not settled within the time."""
    try:
        found = consumer.committed([RawPartition(raw.topic, raw.partition) for raw in partitions], timeout=timeout_s)
    except KafkaException as error:
        raise _unread(error.args[0]) from error
    return _positions(found)


class Takeover:
    """Reads, fences and claims, for a consumer that commits in transactions. Blocks, on the polling thread."""

    def __init__(self, settings: KafkaSettings, group: str, own_slot: str, fence: FenceSlot) -> None:
        self._settings = settings
        self._timeout_s = settings.request_timeout_ms / 1_000
        self._group = group
        self._own_slot = own_slot
        self._fence = fence

    def begin(self, consumer: Consumer, partitions: Sequence[RawPartition]) -> dict[TopicPartition, Position]:
        """Returns where to begin these partitions, claimed for our slot.

        Raises `RetryableError` when that cannot be settled within the request time-out.
        """
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._try_to_begin(consumer, partitions)
            except RetryableError as error:
                if time.monotonic() >= deadline_s:
                    raise
                log.warning("partitions that are ours cannot be begun yet", error=str(error))
                time.sleep(RETRY_S)

    def _try_to_begin(self, consumer: Consumer, partitions: Sequence[RawPartition]) -> dict[TopicPartition, Position]:
        try:
            found = read_committed(consumer, partitions, TAKEOVER_WAIT_S)
        except RetryableError:
            if not self._fence_holders(partitions):
                raise
            found = read_committed(consumer, partitions, self._timeout_s)
        begun = {at: self._from_the_start(consumer, at) if now.offset is None else now for at, now in found.items()}
        claimed = claims(begun, self._own_slot)
        try:
            commit_now(consumer, claimed)
        except FencedError as error:
            # Nothing of ours can be committed for these partitions either, and the next poll drops them.
            log.warning("the group went on before partitions could be claimed", error=str(error))
        return claimed

    def _fence_holders(self, partitions: Sequence[RawPartition]) -> bool:
        """Ends the transactions that hold these offsets; False when that is not what the look-up waited for."""
        admin = AdminClient(client_config(self._settings), logger=StructlogBridge())
        found = self._look_up(admin, partitions, stable=True)
        held = [raw for raw in found if _code(raw) == KafkaError.UNSTABLE_OFFSET_COMMIT]
        if not held:
            return False
        last = _positions(self._look_up(admin, held, stable=False))
        slots = slots_to_fence(last.values(), self._own_slot)
        log.warning("transactions hold offsets: fencing", partitions=partitions_text(last), slots=slots)
        for slot in slots:
            self._fence(slot)
        return True

    def _look_up(self, admin: AdminClient, partitions: Sequence[RawPartition], *, stable: bool) -> list[RawPartition]:
        asked = ConsumerGroupTopicPartitions(
            self._group, [RawPartition(raw.topic, raw.partition) for raw in partitions]
        )
        answer = admin.list_consumer_group_offsets([asked], require_stable=stable, request_timeout=self._timeout_s)
        try:
            found: Any = answer[self._group].result()
        except KafkaException as error:
            raise _unread(error.args[0]) from error
        return list(found.topic_partitions)

    def _from_the_start(self, consumer: Consumer, at: TopicPartition) -> Position:
        try:
            low, _ = consumer.get_watermark_offsets(
                RawPartition(at.topic, at.partition), timeout=self._timeout_s, cached=False
            )
        except KafkaException as error:
            raise _unread(error.args[0]) from error
        return Position(low, "")


def commit_now(consumer: Consumer, offsets: Mapping[TopicPartition, Position]) -> None:
    """Commits, blocking. Raises `RetryableError`, or `FencedError` when the group went on without this member."""
    try:
        results = consumer.commit(offsets=raw_offsets(offsets), asynchronous=False)
    except KafkaException as error:
        raise sort_error(error.args[0]) from error
    for result in results or ():
        if result.error is not None:
            raise sort_error(result.error)


def _positions(found: Sequence[RawPartition]) -> dict[TopicPartition, Position]:
    positions = {}
    for raw in found:
        if raw.error is not None:
            raise _unread(raw.error)
        known = raw.offset >= 0
        positions[TopicPartition(raw.topic, raw.partition)] = Position(
            raw.offset if known else None, (raw.metadata or "") if known else ""
        )
    return positions


def _code(raw: RawPartition) -> int | None:
    return None if raw.error is None else raw.error.code()


def _unread(error: KafkaError) -> CarpoolError:
    if error.code() in UNFINISHED or error.code() in LEFT_BEHIND:
        return RetryableError(f"committed offsets cannot be read: {error.str()}; a transaction may hold them")
    return sort_error(error)

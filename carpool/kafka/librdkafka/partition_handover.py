"""Finds where to begin newly assigned partitions: waits, fences and claims (ADR 0012)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import structlog
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as RawPartition
from confluent_kafka.admin import AdminClient

from carpool.errors import CarpoolError, FencedError, RetryableError
from carpool.kafka.client_config import client_config
from carpool.kafka.clients import Position
from carpool.kafka.fencing import (
    Takeover,
    claims,
    left_by_the_dead,
    previous_owners,
    transactional_id,
)
from carpool.kafka.librdkafka.ask_brokers import reply
from carpool.kafka.librdkafka.committed import commit_now
from carpool.kafka.librdkafka.convert import KINDS, StructlogBridge, sort_error
from carpool.kafka.librdkafka.transactional import fence_instance
from carpool.kafka.raw_records import place_of, raw_partition
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_ids import TopicIds

log = structlog.get_logger()

RETRY_S = 0.05


def read_committed(
    settings: KafkaSettings, group: str, consumer: Consumer, partitions: Sequence[RawPartition]
) -> dict[TopicPartition, Position]:
    """Returns committed offsets. Raises `RetryableError` while a transaction blocks them."""
    try:
        found = consumer.committed(
            [RawPartition(raw.topic, raw.partition) for raw in partitions],
            timeout=settings.request_timeout_ms / 1_000,
        )
    except KafkaException as error:
        raise _unread(error.args[0], f"Read on group {group}") from error
    return {place_of(settings, raw): _position(raw, group) for raw in found}


class PartitionHandover:
    """Reads, fences and claims for a transactional consumer. Blocks the polling thread."""

    def __init__(self, settings: KafkaSettings, group: str, own_instance_id: str) -> None:
        """Raises `ConfigError` for security settings that the coordinators' client lacks."""
        from carpool.kafka.coordinator import CoordinatorClient  # of the extra `services`

        self._settings = settings
        self._timeout_s = settings.request_timeout_ms / 1_000
        self._group = group
        self._own_instance_id = own_instance_id
        self._claimed: set[TopicPartition] = set()
        # Both stay connected: over a slow network, connecting takes longer than asking.
        self._coordinators = CoordinatorClient(settings)
        self._admin = AdminClient(client_config(settings), logger=StructlogBridge())

    def connect(self) -> None:
        """Connects before partitions are assigned, which then need not wait for it.

        Raises `DeploymentError` where the brokers refuse to answer.
        """
        with suppress(RetryableError):
            self._coordinators.unfinished([transactional_id(self._group, self._own_instance_id)])
            self._living()

    def begin(
        self, consumer: Consumer, partitions: Sequence[RawPartition], ids: TopicIds
    ) -> dict[TopicPartition, Position]:
        """Returns where to begin these partitions, claimed for this instance id.

        Raises `RetryableError` after the request time-out.
        """
        began_s = time.monotonic()
        takeover = Takeover(self._timeout_s / 2)
        owners: dict[str, str] | None = None
        while True:
            try:
                if owners is None:
                    owners = self._last_owners(partitions)
                self._end_transactions(owners, takeover)
                found = read_committed(self._settings, self._group, consumer, partitions)
                return self._claim(consumer, ids.positions(found))
            except RetryableError as error:
                if time.monotonic() - began_s >= self._timeout_s:
                    raise
                log.warning("assigned partitions cannot be begun yet", error=str(error))
                time.sleep(RETRY_S)

    def close(self) -> None:
        """Disconnects."""
        self._coordinators.close()

    def _last_owners(self, partitions: Sequence[RawPartition]) -> dict[str, str]:
        """Returns the instance ids of the last owners, by transactional id, without our own."""
        places = [place_of(self._settings, raw) for raw in partitions]
        last = self._coordinators.committed(self._group, places)
        return {
            transactional_id(self._group, owner): owner
            for owner in previous_owners(last.values(), self._own_instance_id)
        }

    def _end_transactions(self, owners: Mapping[str, str], takeover: Takeover) -> None:
        """Fences the last owners that left a transaction open.

        Raises `RetryableError` while a transaction must be waited for.
        """
        found = self._coordinators.unfinished(owners)
        if not found:
            return
        unfinished = {owners[name]: each for name, each in found.items()}
        steps = takeover.decide(unfinished, self._living(), time.monotonic())
        for owner in steps.fence:
            log.warning("a member left a transaction open: fencing it", instance_id=owner)
            fence_instance(self._settings, self._group, owner)
        if steps.wait:
            raise RetryableError(
                f"the transactions of {', '.join(sorted(steps.wait))} have not ended"
            )

    def _claim(
        self, consumer: Consumer, found: Mapping[TopicPartition, Position]
    ) -> dict[TopicPartition, Position]:
        begun = {
            at: self._from_the_start(consumer, at)._replace(metadata=now.metadata)
            if now.offset is None
            else now
            for at, now in found.items()
        }
        left = left_by_the_dead(begun, self._own_instance_id, self._claimed)
        claimed = claims(begun, self._own_instance_id, self._ends(consumer, left))
        self._claimed |= set(claimed)
        try:
            commit_now(self._settings, self._group, consumer, claimed)
        except FencedError as error:
            # This member can commit nothing for these partitions; the next poll revokes them.
            log.warning("the group rebalanced before partitions could be claimed", error=str(error))
        return claimed

    def _ends(
        self, consumer: Consumer, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        raw = [raw_partition(self._settings, at, OFFSET_END) for at in partitions]
        try:
            found = consumer.offsets_for_times(raw, self._timeout_s) if raw else []
        except KafkaException as error:
            topics = ", ".join(sorted({each.topic for each in raw}))
            raise _unread(error.args[0], f"Describe on topic {topics}") from error
        return {place_of(self._settings, each): each.offset for each in found}

    def _living(self) -> frozenset[str]:
        """The instance ids of the group's members, which are their client ids."""
        futures = self._admin.describe_consumer_groups(
            [self._group], request_timeout=self._timeout_s
        )
        try:
            return frozenset(member.client_id for member in reply(futures[self._group]).members)
        except KafkaException as error:
            raise _unread(error.args[0], f"Describe on group {self._group}") from error

    def _from_the_start(self, consumer: Consumer, at: TopicPartition) -> Position:
        try:
            raw = raw_partition(self._settings, at)
            low, _ = consumer.get_watermark_offsets(raw, timeout=self._timeout_s, cached=False)
        except KafkaException as error:
            raise _unread(error.args[0], f"Describe on topic {raw.topic}") from error
        return Position(low, "")


def _position(raw: RawPartition, group: str) -> Position:
    if raw.error is not None:
        raise _unread(raw.error, f"Read on group {group} and on topic {raw.topic}")
    return Position(raw.offset, raw.metadata or "") if raw.offset >= 0 else Position(None, "")


def _unread(error: KafkaError, needed: str) -> CarpoolError:
    if KINDS.get(error.code()) in ("passes", "removed"):
        return RetryableError(
            f"committed offsets cannot be read: {error.str()}; a transaction may block them"
        )
    return sort_error(error, needed)

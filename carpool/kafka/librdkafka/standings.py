"""Asks the brokers where a consumer group is in its partitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as RawPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from carpool.errors import RetryableError
from carpool.kafka.librdkafka.admin_replies import reply
from carpool.kafka.librdkafka.committed import committed_so_far
from carpool.kafka.librdkafka.convert import sort_error
from carpool.kafka.librdkafka.error_kinds import KINDS
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.standing import Standing


def standings(
    admin: AdminClient, settings: KafkaSettings, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, Standing]:
    """Returns the group's standing; empty where the brokers do not support such requests.

    `partitions`: with the brokers' names of topics. Raises `RetryableError` for what passes.
    """
    timeout_s = settings.request_timeout_ms / 1_000
    places = [TopicPartition(settings.logical_topic(at.topic), at.partition) for at in partitions]
    try:
        committed = committed_so_far(settings, group, places).values()
        first, end, records = (
            _offsets(admin, dict.fromkeys(partitions, spec), timeout_s)
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.for_timestamp(0))
        )
    except KafkaException as error:
        if KINDS.get(error.args[0].code()) == "passes":
            failed = sort_error(error.args[0], f"Read on group {group}")
            raise RetryableError(
                f'{failed}. Without this right librdkafka says "timed out": allow what '
                "`carpool acls` prints"
            ) from error
        return {}
    by_place = {TopicPartition(each.topic, each.partition): each for each in committed}
    return {
        at: Standing(
            committed=max(-1, by_place[at].offset),
            metadata=by_place[at].metadata or "",
            first=first[at].offset,
            first_ms=max(0, records[at].timestamp),
            end=end[at].offset,
        )
        for at in partitions
    }


def _offsets(
    admin: AdminClient, wanted: Mapping[TopicPartition, Any], timeout_s: float
) -> dict[TopicPartition, ListOffsetsResultInfo]:
    request = {RawPartition(at.topic, at.partition): spec for at, spec in wanted.items()}
    futures = admin.list_offsets(request, request_timeout=timeout_s)
    return {
        TopicPartition(raw.topic, raw.partition): reply(future) for raw, future in futures.items()
    }

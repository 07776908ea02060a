"""Asks the brokers where a consumer group is in its partitions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as RawPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from carpool.kafka.librdkafka.admin_replies import reply
from carpool.kafka.librdkafka.committed import committed_so_far
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.standing import WARN_SHARE, Standing


def standings(
    admin: AdminClient,
    settings: KafkaSettings,
    group: str,
    partitions: Mapping[TopicPartition, int | None],
) -> dict[TopicPartition, Standing] | None:
    """Returns the group's standing; empty where the brokers do not support such requests.

    `partitions`: with the brokers' names of topics. None: these credentials may not use the group.
    """
    timeout_s = settings.request_timeout_ms / 1_000
    places = [TopicPartition(settings.logical_topic(at.topic), at.partition) for at in partitions]
    now_ms = int(time.time() * 1_000)
    young = {
        at: OffsetSpec.for_timestamp(now_ms - int(retention_ms * WARN_SHARE))
        for at, retention_ms in partitions.items()
        if retention_ms is not None
    }
    try:
        committed = committed_so_far(settings, group, places).values()
        first = _offsets(admin, dict.fromkeys(partitions, OffsetSpec.earliest()), timeout_s)
        end = _offsets(admin, dict.fromkeys(partitions, OffsetSpec.latest()), timeout_s)
        first_young = _offsets(admin, young, timeout_s)
        records = _offsets(admin, dict.fromkeys(partitions, OffsetSpec.for_timestamp(0)), timeout_s)
    except KafkaException as error:
        denied = error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
        return None if denied else {}
    by_place = {TopicPartition(each.topic, each.partition): each for each in committed}
    return {
        at: Standing(
            committed=max(-1, by_place[at].offset),
            metadata=by_place[at].metadata or "",
            first=first[at].offset,
            first_ms=max(0, records[at].timestamp),
            end=end[at].offset,
            # Where no record is that young, all of them are older.
            first_young=(first_young[at].offset if first_young[at].offset >= 0 else end[at].offset)
            if at in first_young
            else None,
        )
        for at in partitions
    }


def _offsets(
    admin: AdminClient, wanted: Mapping[TopicPartition, Any], timeout_s: float
) -> dict[TopicPartition, ListOffsetsResultInfo]:
    if not wanted:
        return {}
    request = {RawPartition(at.topic, at.partition): spec for at, spec in wanted.items()}
    futures = admin.list_offsets(request, request_timeout=timeout_s)
    return {
        TopicPartition(raw.topic, raw.partition): reply(future) for raw, future in futures.items()
    }

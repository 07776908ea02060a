"""Asks the brokers for the facts that `checks` judges: topics, settings, group offsets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as RawPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from carpool.errors import ConfigError
from carpool.kafka.admin import topic_facts
from carpool.kafka.checks import (
    WARN_SHARE,
    BrokerFacts,
    Deployment,
    Standing,
    Wish,
    judge,
    named_at_brokers,
)
from carpool.kafka.cluster import cluster_metadata, quiet_admin
from carpool.kafka.librdkafka.admin_replies import reply
from carpool.kafka.librdkafka.broker_config import broker_config
from carpool.kafka.librdkafka.committed import committed_so_far
from carpool.kafka.librdkafka.hidden_topics import hidden_topics
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from schemas.topics import Topic


def check_deployment(
    settings: KafkaSettings,
    wish: Wish,
    topics: Sequence[Topic],
    *,
    group: str,
    inputs: Iterable[str],
) -> Deployment:
    """Returns the judged deployment of a service of this `group` that reads `inputs`. Blocks.

    Raises `RetryableError` when no broker answers.
    """
    admin, timeout_s = quiet_admin(settings), settings.request_timeout_ms / 1_000
    metadata = cluster_metadata(admin, settings, timeout_s)
    config = broker_config(admin, metadata.brokers, timeout_s)
    wanted = named_at_brokers(settings, topics)
    found = topic_facts(admin, metadata, wanted, timeout_s)
    partitions = {
        TopicPartition(name, number): _retention_ms(found[name].config)
        for name in sorted(found.keys() & set(map(settings.broker_topic, inputs)))
        for number in metadata.topics[name].partitions
    }
    standings = _standings(admin, settings, group, partitions) if partitions else {}
    # Brokers without access control hide nothing, and some create a topic that a request names.
    may_hide = config is None or "authorizer.class.name" in config
    missing = [topic.name for topic in wanted if may_hide and topic.name not in found]
    facts = BrokerFacts(
        brokers=len(metadata.brokers),
        config=config,
        topics=found,
        standings=standings or {},
        hidden_topics=hidden_topics(admin, missing, timeout_s),
        hidden_group=group if standings is None else None,
    )
    return judge(settings, wish, topics, facts)


def require_fit(deployment: Deployment) -> None:
    """Raises `ConfigError` with all problems, where there are any."""
    if deployment.problems:
        raise ConfigError(
            "this deployment would lose work or stand still:\n  " + "\n  ".join(deployment.problems)
        )


def _retention_ms(config: Mapping[str, str] | None) -> int | None:
    """The retention of the topic; None: unlimited or unknown."""
    text = (config or {}).get("retention.ms", "")
    return int(text) if text.isdigit() else None


def _standings(
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
    except KafkaException as error:
        denied = error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
        return None if denied else {}
    by_place = {TopicPartition(each.topic, each.partition): each.offset for each in committed}
    return {
        at: Standing(
            committed=max(-1, by_place.get(at, -1)),
            first=first[at],
            end=end[at],
            # Where no record is that young, all of them are older.
            first_young=(first_young[at] if first_young[at] >= 0 else end[at])
            if at in first_young
            else None,
        )
        for at in partitions
    }


def _offsets(
    admin: AdminClient, wanted: Mapping[TopicPartition, Any], timeout_s: float
) -> dict[TopicPartition, int]:
    if not wanted:
        return {}
    request = {RawPartition(at.topic, at.partition): spec for at, spec in wanted.items()}
    futures = admin.list_offsets(request, request_timeout=timeout_s)
    return {
        TopicPartition(raw.topic, raw.partition): reply(future).offset
        for raw, future in futures.items()
    }

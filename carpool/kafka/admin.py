"""Creates topics from the list of `schemas.topics`, and compares those at the brokers with it."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from carpool.errors import ConfigError
from carpool.kafka.checks import TopicFacts, named_at_brokers
from carpool.kafka.cluster import cluster_metadata, quiet_admin
from carpool.kafka.librdkafka.admin_replies import reply
from carpool.kafka.librdkafka.broker_config import settings_of
from carpool.kafka.librdkafka.topic_rights import topic_rights
from carpool.kafka.settings import KafkaSettings
from schemas.topics import TOPICS, Topic

LISTED_S = 0.1
LISTED_TRIES = 100
"""A broker lists a topic some time after it was made."""


@dataclass(frozen=True, kw_only=True)
class TopicState:
    """A topic at the brokers, with its name there. `partitions` 0: it does not exist.

    `drift`: differences.
    """

    topic: Topic
    partitions: int
    replicas: int
    drift: tuple[str, ...]


def topic_config(topic: Topic) -> dict[str, str]:
    """Returns the broker-side settings of a topic."""
    config = {
        "max.message.bytes": str(topic.max_message_bytes),
        "cleanup.policy": "delete",
        "retention.ms": str(topic.retention_ms),
    }
    if topic.compaction_lag_ms is not None:
        config["cleanup.policy"] = "compact,delete"
        config["min.compaction.lag.ms"] = str(topic.compaction_lag_ms)
    return config


def create_topics(settings: KafkaSettings, topics: Sequence[Topic] = TOPICS) -> list[str]:
    """Creates the missing topics and returns their names at the brokers, which list them then.

    Raises `RetryableError` when no broker answers, `ConfigError` when the brokers refuse.
    """
    admin, timeout_s = quiet_admin(settings), settings.request_timeout_ms / 1_000
    metadata = cluster_metadata(admin, settings, timeout_s)
    replicas = settings.replication_factor or min(3, max(1, len(metadata.brokers)))
    missing = [
        topic for topic in named_at_brokers(settings, topics) if topic.name not in metadata.topics
    ]
    if not missing:
        return []
    # One copy may be down; one copy alone does not acknowledge.
    in_sync = {"min.insync.replicas": str(min(2, replicas - 1))} if replicas > 1 else {}
    wanted = [
        NewTopic(
            topic.name,
            num_partitions=settings.lanes if topic.partition_by == "lane" else settings.partitions,
            replication_factor=replicas,
            config=topic_config(topic) | in_sync,
        )
        for topic in missing
    ]
    created = []
    for name, future in admin.create_topics(wanted, operation_timeout=timeout_s).items():
        try:
            reply(future)
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise ConfigError(
                    f"the brokers refuse to make topic {name}: {error.args[0].str()}"
                ) from error
    for _ in range(LISTED_TRIES):
        if cluster_metadata(admin, settings, timeout_s).topics.keys() >= set(created):
            break
        time.sleep(LISTED_S)
    return sorted(created)


def describe_topics(settings: KafkaSettings, topics: Sequence[Topic] = TOPICS) -> list[TopicState]:
    """Returns each topic at the brokers, with differences. Raises `RetryableError`."""
    topics = named_at_brokers(settings, topics)
    admin, timeout_s = quiet_admin(settings), settings.request_timeout_ms / 1_000
    metadata = cluster_metadata(admin, settings, timeout_s)
    present = topic_facts(admin, metadata, topics, timeout_s)
    hidden = topic_rights(admin, _missing(topics, metadata), timeout_s)
    absent = TopicFacts(partitions=0, replicas=0, config=None)
    return [
        TopicState(
            topic=topic,
            partitions=facts.partitions,
            replicas=facts.replicas,
            drift=_drift(topic, facts, settings)
            if facts.partitions
            else (_absence(topic, hidden),),
        )
        for topic in topics
        for facts in (present.get(topic.name, absent),)
    ]


def topic_facts(
    admin: AdminClient, metadata: ClusterMetadata, topics: Sequence[Topic], timeout_s: float
) -> dict[str, TopicFacts]:
    """Returns every topic of the cluster, with the settings of `topics` only. Blocks.

    All names are those at the brokers. Raises `RetryableError` without an answer.
    """
    present = {name: found for name, found in metadata.topics.items() if found.error is None}
    resources = [
        ConfigResource(ResourceType.TOPIC, topic.name) for topic in topics if topic.name in present
    ]
    configs = settings_of(admin, resources, timeout_s)
    return {
        name: TopicFacts(
            partitions=len(found.partitions),
            replicas=min((len(each.replicas) for each in found.partitions.values()), default=0),
            config=configs.get(name),
        )
        for name, found in present.items()
    }


def _missing(topics: Sequence[Topic], metadata: ClusterMetadata) -> list[str]:
    return [topic.name for topic in topics if topic.name not in metadata.topics]


def _absence(topic: Topic, hidden: Container[str]) -> str:
    return "cannot be seen: allow Describe on it" if topic.name in hidden else "does not exist"


def _drift(topic: Topic, facts: TopicFacts, settings: KafkaSettings) -> tuple[str, ...]:
    drift = []
    if topic.partition_by == "lane" and facts.partitions != settings.lanes:
        drift.append(f"has {facts.partitions} partitions, and kafka.lanes is {settings.lanes}")
    if facts.config is None:
        return (*drift, "settings cannot be read: allow DescribeConfigs on the topic")
    for name, wanted in topic_config(topic).items():
        if facts.config.get(name, wanted) != wanted:
            drift.append(f"{name} is {facts.config[name]}, not {wanted}")
    return tuple(drift)

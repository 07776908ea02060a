"""Topics at the brokers: made from the one list, and compared with it."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from carpool.errors import ConfigError
from carpool.kafka.checks import LANES
from carpool.kafka.client_config import client_config
from carpool.kafka.cluster import cluster_metadata
from carpool.kafka.librdkafka.admin_replies import reply
from carpool.kafka.settings import KafkaSettings
from schemas.topics import TOPICS, Topic


@dataclass(frozen=True, kw_only=True)
class TopicState:
    """A topic at the brokers. `partitions` 0: it does not exist. `drift`: differences."""

    topic: Topic
    partitions: int
    replicas: int
    drift: tuple[str, ...]


def partitions_of(topic: Topic, settings: KafkaSettings) -> int:
    """Returns the partitions of a new topic."""
    return LANES if topic.partition_by == "lane" else settings.partitions


def topic_config(topic: Topic) -> dict[str, str]:
    """Returns the broker-side settings of a topic. Compaction begins after the retention."""
    config = {"max.message.bytes": str(topic.max_message_bytes), "cleanup.policy": topic.cleanup}
    if topic.cleanup == "compact":
        config["min.compaction.lag.ms"] = str(topic.retention_ms)
    else:
        config["retention.ms"] = str(topic.retention_ms)
    return config


def in_sync_config(replicas: int) -> dict[str, str]:
    """Returns `min.insync.replicas`: one copy may be down, one copy alone is not enough."""
    return {"min.insync.replicas": str(min(2, replicas - 1))} if replicas > 1 else {}


def create_topics(settings: KafkaSettings, topics: tuple[Topic, ...] = TOPICS) -> list[str]:
    """Creates the missing topics and returns their names.

    Raises `RetryableError` when no broker answers, `ConfigError` when the brokers refuse.
    """
    admin, timeout_s = _admin(settings)
    metadata = cluster_metadata(admin, settings.bootstrap, timeout_s)
    replicas = settings.replication_factor or min(3, max(1, len(metadata.brokers)))
    missing = [topic for topic in topics if topic.name not in metadata.topics]
    if not missing:
        return []
    wanted = [
        NewTopic(
            topic.name,
            num_partitions=partitions_of(topic, settings),
            replication_factor=replicas,
            config=topic_config(topic) | in_sync_config(replicas),
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
    return sorted(created)


def describe_topics(
    settings: KafkaSettings, topics: tuple[Topic, ...] = TOPICS
) -> list[TopicState]:
    """Returns each topic at the brokers, with differences. Raises `RetryableError`."""
    admin, timeout_s = _admin(settings)
    metadata = cluster_metadata(admin, settings.bootstrap, timeout_s)
    states = []
    for topic in topics:
        found = metadata.topics.get(topic.name)
        if found is None or found.error is not None:
            states.append(
                TopicState(topic=topic, partitions=0, replicas=0, drift=("does not exist",))
            )
            continue
        partitions = len(found.partitions)
        replicas = min((len(each.replicas) for each in found.partitions.values()), default=0)
        drift = _drift(admin, topic, timeout_s)
        if topic.partition_by == "lane" and partitions != LANES:
            drift = (f"has {partitions} partitions, and there is one lane", *drift)
        states.append(
            TopicState(topic=topic, partitions=partitions, replicas=replicas, drift=drift)
        )
    return states


def _drift(admin: AdminClient, topic: Topic, timeout_s: float) -> tuple[str, ...]:
    resource = ConfigResource(ResourceType.TOPIC, topic.name)
    try:
        entries = reply(admin.describe_configs([resource], request_timeout=timeout_s)[resource])
    except KafkaException as error:
        return (f"settings cannot be read: {error.args[0].str()}",)
    return tuple(
        f"{name} is {entries[name].value}, not {wanted}"
        for name, wanted in topic_config(topic).items()
        if name in entries and entries[name].value != wanted
    )


def _admin(settings: KafkaSettings) -> tuple[AdminClient, float]:
    # What fails is raised; librdkafka's own log lines would only bury it.
    return AdminClient(
        client_config(settings) | {"log_level": 0}
    ), settings.request_timeout_ms / 1_000

"""Creates topics from the list of `schemas.topics`, asks for those there are, and gives rights."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from carpool.errors import ConfigError
from carpool.kafka.acls import Acl
from carpool.kafka.checks import TopicFacts, named_at_brokers
from carpool.kafka.cluster import cluster_metadata, quiet_admin, told
from carpool.kafka.librdkafka.ask_brokers import reply, settings_of
from carpool.kafka.settings import KafkaSettings
from schemas.topics import TOPICS, Topic

LISTED_S = 0.1
LISTED_TRIES = 100
"""A broker lists a topic some time after it was made."""


def topic_config(topic: Topic) -> dict[str, str]:
    """Returns the broker-side settings of a topic."""
    config = {
        "max.message.bytes": str(topic.max_message_bytes),
        "cleanup.policy": ",".join(topic.cleanup),
        "retention.ms": str(max(-1, topic.retention_ms)),
    }
    if topic.compaction_lag_ms is not None:
        config["min.compaction.lag.ms"] = str(topic.compaction_lag_ms)
    if topic.nulls_ms is not None:
        config["delete.retention.ms"] = str(topic.nulls_ms)
    if topic.is_dated_by_brokers:
        config["message.timestamp.type"] = "LogAppendTime"
    return config


def _partitions(topic: Topic, settings: KafkaSettings) -> int:
    counts = {"lane": settings.lanes, "none": 1}
    return counts.get(topic.partition_by, settings.partitions)


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
            num_partitions=_partitions(topic, settings),
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
                    f"the brokers refuse to make topic {name}: "
                    + told(error.args[0], f"Create on topic {name}")
                ) from error
    for _ in range(LISTED_TRIES):
        if cluster_metadata(admin, settings, timeout_s).topics.keys() >= set(created):
            break
        time.sleep(LISTED_S)
    return sorted(created)


def allow(settings: KafkaSettings, rights: Iterable[tuple[str, Acl]]) -> None:
    """Gives rights to principals, which may have them already. Raises as `create_topics` does."""
    admin, timeout_s = quiet_admin(settings), settings.request_timeout_ms / 1_000
    cluster_metadata(admin, settings, timeout_s)
    bindings = list(dict.fromkeys(acl_binding(*each) for each in rights))
    for future in admin.create_acls(bindings, request_timeout=timeout_s).values():
        try:
            reply(future)
        except KafkaException as error:
            why = told(error.args[0], "Alter on the cluster")
            raise ConfigError(f"the brokers do not give the rights: {why}") from error


def acl_binding(
    principal: str, acl: Acl, permission: AclPermissionType = AclPermissionType.ALLOW
) -> AclBinding:
    """Returns a right of a principal as librdkafka names it."""
    kind = ResourceType.BROKER if acl.resource == "CLUSTER" else ResourceType[acl.resource]
    pattern, operation = ResourcePatternType[acl.pattern], AclOperation[acl.operation]
    return AclBinding(kind, acl.name, pattern, principal, "*", operation, permission)


def missing_topics(settings: KafkaSettings) -> list[str]:
    """Returns the topics of the list that do not exist, or that these credentials may not see.

    With their names at the brokers. Blocks. Raises `RetryableError` when no broker answers.
    """
    timeout_s = settings.request_timeout_ms / 1_000
    found = cluster_metadata(quiet_admin(settings), settings, timeout_s).topics
    present = {name for name, topic in found.items() if topic.error is None}
    return [topic.name for topic in named_at_brokers(settings, TOPICS) if topic.name not in present]


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

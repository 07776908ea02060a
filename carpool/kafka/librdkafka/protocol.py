"""Which protocol the members of a consumer group speak: KIP-848, where the brokers assign partitions, or cooperative-sticky."""

from __future__ import annotations

from typing import Any, Literal

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from carpool.kafka.settings import KafkaSettings, consumer_config

log = structlog.get_logger()

GroupProtocol = Literal["consumer", "classic"]

CLASSIC_ONLY = ("partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms")
"""What the brokers decide with the consumer protocol; librdkafka refuses to be told."""

BROKER_SESSION_TIMEOUT = "group.consumer.session.timeout.ms"
"""The brokers' own setting in place of ours. Brokers that have it have the protocol."""


def choose_protocol(settings: KafkaSettings, admin: AdminClient, broker_id: int) -> GroupProtocol:
    """Returns the protocol that the settings ask for; for `auto` asks a broker. Blocks.

    librdkafka itself would try for ever, in silence, to join by a protocol that the brokers do not have.
    """
    if settings.group_protocol != "auto":
        return settings.group_protocol
    broker = ConfigResource(ResourceType.BROKER, str(broker_id))
    try:
        found = admin.describe_configs([broker], request_timeout=settings.request_timeout_ms / 1_000)[broker].result()
    except KafkaException as error:
        log.info("brokers do not tell their settings; members share partitions by themselves", error=str(error))
        return "classic"
    timeout = found.get(BROKER_SESSION_TIMEOUT)
    log.info("brokers were asked for the consumer protocol (KIP-848)", session_timeout_ms=timeout and timeout.value)
    return "classic" if timeout is None else "consumer"


def member_config(settings: KafkaSettings, group: str, protocol: GroupProtocol) -> dict[str, Any]:
    """Returns the configuration of a group member that speaks this protocol."""
    config = consumer_config(settings, group)
    if protocol == "classic":
        return config
    # By range: each topic is shared by itself. The brokers' default counts partitions over all topics, and may give one
    # member all of the class that has work, and another all of the one that has none.
    ours = {"group.protocol": "consumer", "group.remote.assignor": "range"}
    return {name: value for name, value in config.items() if name not in CLASSIC_ONLY} | ours

"""The protocol of a consumer group: KIP-848 (brokers assign) or cooperative-sticky."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import structlog
from confluent_kafka.admin import AdminClient

from carpool.kafka.client_config import consumer_config
from carpool.kafka.librdkafka.ask_brokers import broker_config
from carpool.kafka.passed_through import flattened
from carpool.kafka.settings import KafkaSettings

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

"""Waits until no other member of a group has our instance id, before it is fenced."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable

import structlog
from confluent_kafka import KafkaError, KafkaException

from carpool.errors import ConfigError
from carpool.kafka.client_config import consumer_config
from carpool.kafka.cluster import quiet_admin
from carpool.kafka.librdkafka.ask_brokers import reply
from carpool.kafka.librdkafka.convert import sort_error
from carpool.kafka.settings import KafkaSettings

log = structlog.get_logger()

LOOK_S = 0.5
MARGIN_S = 5.0
SESSION_S_MAX = 60.0
"""The longest session that brokers give a member by default, where ours is not set longer."""


def wait_until_name_is_free(
    settings: KafkaSettings, group: str, instance_id: str, wait: Callable[[float], bool]
) -> None:
    """Returns when the group has no member with this instance id, or `wait` returns True. Blocks.

    A member that was killed is in the group until its session ends, and keeps its partitions until
    then. One that is still there afterwards is alive: two members with one name would end each
    other again and again. Raises `ConfigError` then, `RetryableError` while the coordinator of the
    group is away, and `DeploymentError` without the right to describe the group.
    """
    until_s: float | None = None
    while True:
        host = _host_of(settings, group, instance_id)
        if host is None:
            return
        if until_s is None:
            own_s = int(consumer_config(settings, "")["session.timeout.ms"]) / 1_000
            session_s = max(own_s, SESSION_S_MAX)
            until_s = time.monotonic() + session_s + MARGIN_S
            log.warning(
                "a member of the group has this instance id: waiting until its session ends",
                group=group,
                instance_id=instance_id,
                host=host,
                seconds_max=session_s,
            )
        if time.monotonic() >= until_s:
            raise ConfigError(
                f"another member of {group} has the instance id {instance_id} and is alive, at "
                f"{host or 'an unknown address'}: of two members with one name, each would end the "
                "other. Stop one, or give each an id of its own (kafka.instance_id, or "
                "CARPOOL_KAFKA_INSTANCE_ID)"
            )
        if wait(LOOK_S):
            return


def _host_of(settings: KafkaSettings, group: str, instance_id: str) -> str | None:
    """Returns the address of the member with this instance id; None: there is none.

    The instance id of a member is its client id.
    """
    admin = quiet_admin(settings)
    timeout_s = settings.request_timeout_ms / 1_000
    futures = admin.describe_consumer_groups([group], request_timeout=timeout_s)
    try:
        members = reply(futures[group]).members
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return None
        raise sort_error(error.args[0], f"Describe on group {group}") from error
    hosts = [(each.host or "").lstrip("/") for each in members if each.client_id == instance_id]
    return hosts[0] if hosts else None


def configured_instance_id(settings: KafkaSettings) -> str:
    """Returns `instance_id`, or the host's name with only the characters of an id."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64]
    return settings.instance_id or host or "member"

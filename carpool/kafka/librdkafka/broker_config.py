"""Reads the settings of brokers and topics."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from carpool.errors import DeploymentError, RetryableError
from carpool.kafka.librdkafka.admin_replies import reply
from carpool.kafka.librdkafka.convert import sort_error


def broker_config(
    admin: AdminClient, broker_ids: Iterable[int], timeout_s: float
) -> dict[str, str] | None:
    """Returns the settings of the first broker that answers; None: not permitted. Blocks.

    Each broker has `timeout_s`. Raises `RetryableError` when none answers.
    """
    silent = RetryableError("the brokers know of no broker yet; is the cluster starting?")
    for broker_id in sorted(broker_ids):
        try:
            return settings_of(
                admin, [ConfigResource(ResourceType.BROKER, str(broker_id))], timeout_s
            ).get(str(broker_id))
        except RetryableError as error:
            silent = error
    raise silent


def settings_of(
    admin: AdminClient, resources: list[ConfigResource], timeout_s: float
) -> dict[str, dict[str, str]]:
    """Returns the settings of topics or of one broker by name, without those we may not read.

    Raises `RetryableError` without an answer.
    """
    found: dict[str, dict[str, str]] = {}
    if not resources:
        return found
    for resource, future in admin.describe_configs(resources, request_timeout=timeout_s).items():
        try:
            entries = reply(future)
        except KafkaException as error:
            kind = resource.restype.name.lower()
            failed = sort_error(error.args[0], f"DescribeConfigs on {kind} {resource.name}")
            if isinstance(failed, DeploymentError):
                continue
            raise failed from error
        found[resource.name] = {
            name: entry.value for name, entry in entries.items() if entry.value is not None
        }
    return found

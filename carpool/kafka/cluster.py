"""Asks a cluster for its topics and brokers."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from carpool.errors import RetryableError
from carpool.kafka.client_config import client_config
from carpool.kafka.settings import KafkaSettings


def quiet_admin(settings: KafkaSettings) -> AdminClient:
    """Returns an admin client that logs nothing: every failure is raised."""
    return AdminClient(client_config(settings) | {"log_level": 0})


def cluster_metadata(
    client: AdminClient | Consumer, bootstrap: str, timeout_s: float, topic: str | None = None
) -> ClusterMetadata:
    """Returns the metadata of one topic, or of all. Blocks.

    Raises `RetryableError` when no broker answers. Some brokers create a topic that a request
    names.
    """
    try:
        return client.list_topics(topic, timeout=timeout_s)
    except KafkaException as error:
        raise no_broker_answers(bootstrap, error) from error


def no_broker_answers(bootstrap: str, error: KafkaException) -> RetryableError:
    """Returns the error of a call that reached no broker."""
    return RetryableError(
        f"no broker answers at {bootstrap}: {error.args[0].str()}. Start one (`carpool up` starts "
        "its own), or give the right address with --bootstrap or CARPOOL_KAFKA_BOOTSTRAP."
    )

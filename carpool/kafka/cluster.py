"""The topics and brokers of a cluster, as its metadata names them."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from carpool.errors import RetryableError


def cluster_metadata(
    client: AdminClient | Consumer, bootstrap: str, timeout_s: float
) -> ClusterMetadata:
    """Returns the metadata of all topics. Blocks; raises `RetryableError` when no broker answers.

    All topics are asked for: some brokers create a topic that is asked for by its name.
    """
    try:
        return client.list_topics(timeout=timeout_s)
    except KafkaException as error:
        raise no_broker_answers(bootstrap, error) from error


def no_broker_answers(bootstrap: str, error: KafkaException) -> RetryableError:
    """Returns the error of a call that reached no broker."""
    return RetryableError(
        f"no broker answers at {bootstrap}: {error.args[0].str()}. Start one (`carpool up` starts "
        "its own), or give the right address with --bootstrap or CARPOOL_KAFKA_BOOTSTRAP."
    )


def partitions_by_topic(metadata: ClusterMetadata) -> dict[str, tuple[int, ...]]:
    """Returns the partitions of each topic that exists, in order."""
    return {
        name: tuple(sorted(topic.partitions))
        for name, topic in metadata.topics.items()
        if topic.error is None
    }

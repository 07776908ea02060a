"""Asks the brokers what these credentials may do with topics."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from carpool.kafka.librdkafka.admin_replies import reply
from carpool.kafka.librdkafka.convert import sort_error


def topic_rights(
    admin: AdminClient, names: Iterable[str], timeout_s: float
) -> dict[str, frozenset[str]]:
    """Returns the operations on each of these topics that exists: names as in `kafka.acls`. Blocks.

    None at all: the credentials may not describe the topic, which metadata does not list then.
    Raises `RetryableError` when no broker answers.
    """
    wanted = list(names)
    if not wanted:
        return {}
    found = {}
    futures = admin.describe_topics(
        TopicCollection(wanted), include_authorized_operations=True, request_timeout=timeout_s
    )
    for name, future in futures.items():
        try:
            allowed = reply(future).authorized_operations
            found[name] = frozenset(each.name for each in allowed or ())
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                found[name] = frozenset()
            elif code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise sort_error(error.args[0], f"Describe on topic {name}") from error
    return found

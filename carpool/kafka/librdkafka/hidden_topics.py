"""Finds topics that the credentials may not describe, which metadata does not list."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from carpool.errors import RetryableError
from carpool.kafka.librdkafka.admin_replies import reply


def hidden_topics(admin: AdminClient, names: Iterable[str], timeout_s: float) -> frozenset[str]:
    """Returns which of these topics the credentials may not describe. Blocks.

    Raises `RetryableError` when no broker answers.
    """
    wanted = list(names)
    if not wanted:
        return frozenset()
    hidden = set()
    futures = admin.describe_topics(TopicCollection(wanted), request_timeout=timeout_s)
    for name, future in futures.items():
        try:
            reply(future)
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                hidden.add(name)
            elif code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise RetryableError(
                    f"no broker describes topic {name}: {error.args[0].str()}"
                ) from error
    return frozenset(hidden)

"""Wakes librdkafka's fetching threads, which sleep for up to a second."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from confluent_kafka import OFFSET_END, Consumer, KafkaException
from confluent_kafka import TopicPartition as RawPartition

from carpool.kafka.settings import KafkaSettings

ASK_S = 0.1
"""Time-out of the request after a rebalance; fetching continues meanwhile."""


def wake(consumer: Consumer, settings: KafkaSettings) -> None:
    """Wakes the threads. Does not block.

    Setting the credentials, here to the same values, is the only call that wakes them. It sends
    nothing to the brokers.
    """
    consumer.set_sasl_credentials(settings.sasl_username, settings.sasl_password.value)


def wake_after_rebalance(consumer: Consumer, partitions: Sequence[RawPartition]) -> None:
    """Makes librdkafka fetch retained partitions immediately.

    librdkafka pauses all partitions during a rebalance. A request to a broker and its reply wake
    the thread of that broker. `wake` could be too early here, because librdkafka resumes the
    partitions later.
    """
    if partitions:
        ends = [RawPartition(each.topic, each.partition, OFFSET_END) for each in partitions]
        # The answer is not used; from a broker that does not answer, nothing can be fetched.
        with suppress(KafkaException):
            consumer.offsets_for_times(ends, ASK_S)

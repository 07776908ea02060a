"""Replies to an `AdminClient`, taken so that the client never ends on its own thread.

librdkafka aborts the process if it does. librdkafka delivers a reply on a thread of the client, and
that thread drops the future last. So a future must not reference the client: through no callback of
an object that has the client, and through no exception raised in a frame where the client is a
variable.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import KafkaException

T = TypeVar("T")


def reply(future: Future[T]) -> T:
    """Returns the result of a future. Blocks. Raises `KafkaException`."""
    error = future.exception()
    if isinstance(error, KafkaException):
        raise KafkaException(
            *error.args
        )  # a new one: the traceback of the other references frames of the client
    return future.result()

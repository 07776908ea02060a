"""Takes replies to an `AdminClient` so that the client is never destroyed on its own thread.

librdkafka would abort the process. It delivers a reply on a thread of the client, and that thread
drops the future last. So a future must not reference the client: neither by a callback of an object
that has the client, nor by an exception raised in a frame where the client is a variable.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

T = TypeVar("T")


def reply(future: Future[T]) -> T:
    """Returns the result of a future. Blocks. Raises `KafkaException`, whose text is not empty."""
    error = future.exception()
    if isinstance(error, KafkaException):
        # A new exception: the traceback of the old one references frames with the client.
        found: KafkaError = error.args[0]
        text = found.str().rstrip(": ")
        if text != found.str():  # brokers may send a code without words
            found = KafkaError(found.code(), f"{text}: {KafkaError(found.code()).str()}")
        raise KafkaException(found)
    return future.result()

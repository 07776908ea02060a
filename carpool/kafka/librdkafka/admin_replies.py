"""Takes replies to an `AdminClient` so that the client is never destroyed on its own thread.

librdkafka would abort the process. It delivers a reply on a thread of the client, and that thread
drops the future last. So a future must not reference the client: neither by a callback of an object
that has the client, nor by an exception raised in a frame where the client is a variable.
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
        # A new exception: the traceback of the old one references frames with the client.
        raise KafkaException(*error.args)
    return future.result()

"""Replies to an `AdminClient`, taken so that it never ends on a thread of its own, where librdkafka
would abort the process.

librdkafka brings a reply on a thread of the client, and that thread drops the future last. So
nothing that a future holds may hold the client: no callback of an object that has it, and no
exception that was raised through a frame in which it is a variable.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import KafkaException

T = TypeVar("T")


def reply(future: Future[T]) -> T:
    """Returns what the brokers replied, as `future.result()` does. Blocks. Raises
    `KafkaException`.
    """
    error = future.exception()
    if isinstance(error, KafkaException):
        raise KafkaException(
            *error.args
        )  # another one: a traceback holds every frame that it came through
    return future.result()

"""Asks for a base, and waits until the indexer has saved it."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable

from carpool.clock import Clock
from carpool.corpus.bases import Bases
from carpool.errors import RetryableError
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from producers.build_query import packed
from producers.errors import PublishError
from producers.publish_queries import Publisher
from producers.settings import ClientSettings
from schemas.document import Base, BaseWanted
from schemas.record import header
from schemas.topics import BASES

SILENT_S = 30.0
"""After so long a note says what to look at."""


def save_base(
    kafka: KafkaSettings,
    client: ClientSettings,
    clock: Clock,
    note: Callable[[str], object],
    is_over: Callable[[], bool] = lambda: False,
    *,
    retrain: bool = False,
) -> Base | None:
    """Returns a base with all that is folded now; None: it `is_over` before. Blocks.

    `retrain`: it gets new centroids. Raises `RetryableError` without brokers.
    """
    with TopicReader(kafka, clock, name="corpus-save") as reader:
        reader.add({at: reader.bounds(at)[0] for at in reader.partitions(BASES.name)})
        event_id = _ask(kafka, client, clock, retrain).encode()
        bases, asked = Bases(), math.inf
        began_s, is_noted = time.monotonic(), False
        while not is_over():
            for message in reader.poll(10, 0.1).messages:
                bases.hear(message)
                if header(message.headers, "ce_id") == event_id:
                    asked = message.source.offset
            if bases.current is not None and bases.current.requests > asked:
                return bases.current
            if not is_noted and time.monotonic() - began_s > SILENT_S:
                is_noted = True
                note(
                    "no base was saved yet: a large corpus takes minutes; is an indexer running "
                    "that has the index (`carpool status`)?"
                )
    return None


def _ask(kafka: KafkaSettings, client: ClientSettings, clock: Clock, retrain: bool) -> str:
    """Writes the request, and returns its id."""
    event_id = str(uuid.uuid4())
    wanted = BaseWanted(asked_ms=clock.now_us() // 1_000, retrain=retrain)
    record = packed(BASES, event_id, wanted, event_id, clock.now_us())
    errors = list[PublishError | None]()
    publisher = Publisher(kafka, client)
    publisher.send(record, lambda _, error: errors.append(error))
    publisher.close(client.publish_timeout_ms / 1_000)
    if not errors:
        raise RetryableError("the brokers did not take the request for a base")
    if errors[0] is not None:
        raise errors[0]
    return event_id

"""Reads and writes `rag.batches.v1`: the newest record of a batch is what is known of it."""

from __future__ import annotations

from carpool.clock import Clock
from carpool.errors import ConfigError
from carpool.kafka.records import Message
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import read_topic
from producers.build_query import QueryRecord, packed
from schemas.batch import Batch
from schemas.codec import decode
from schemas.errors import RecordError
from schemas.topics import BATCHES

SOURCE_NAME = "urn:carpool:batch"


def batch_of(message: Message) -> Batch | None:
    """Returns the batch of a record; None for a record that cannot be read."""
    try:
        return decode(Batch, message.value, message.headers)
    except RecordError:
        return None


def read_batches(kafka: KafkaSettings, clock: Clock) -> dict[str, Batch]:
    """Returns the batches by id. Blocks. Raises `ConfigError` and `RetryableError`."""
    found = map(batch_of, read_topic(kafka, clock, BATCHES.name, name="batches"))
    return {batch.batch_id: batch for batch in found if batch is not None}


def find_batch(batches: dict[str, Batch], name: str) -> Batch:
    """Returns the batch whose id begins with `name`. Raises `ConfigError` unless there is one."""
    found = [batch for batch in batches.values() if batch.batch_id.startswith(name)]
    if len(found) != 1:
        what = "no batch has" if not found else f"{len(found)} batches have"
        raise ConfigError(f"{what} an id that begins with {name!r}; see `carpool batch list`")
    return found[0]


def batch_record(batch: Batch, now_us: int) -> QueryRecord:
    """Returns the record of a batch, for a `Publisher`."""
    event_id = f"{batch.batch_id}/{batch.runner}/{now_us}"
    return packed(BATCHES, batch.batch_id, batch, event_id, now_us, SOURCE_NAME)

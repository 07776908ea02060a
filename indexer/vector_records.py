"""Makes the records of `rag.vectors.v1`: what each says of the place of its document.

Brokers keep null records for a while only (`delete.retention.ms`). An indexer that was away for
longer finds neither the document nor its delete, and the vectors still have it: it deletes what the
log of documents has forgotten.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from carpool.clock import Clock
from carpool.corpus.fold import OLD_MS
from carpool.digest import digest_of
from carpool.errors import DeploymentError
from carpool.kafka.records import Message, Output, TopicPartition
from carpool.kafka.sizes import fits
from carpool.loop.stage import Unit
from indexer.corpus_logs import CorpusLogs
from schemas.codec import decode, encode
from schemas.document import DocumentVectors
from schemas.errors import RecordError
from schemas.topics import DOCUMENTS, VECTORS

log = structlog.get_logger()

NOTHING_YET = -1
DELETED = DocumentVectors(offset=0, is_behind=True, deleted=True)
"""Of a forgotten document: what is before the document that follows may be missing."""


@dataclass(slots=True)
class _Place:
    """A partition since it was assigned: `last_offset` of its documents in hand so far.

    `topic`: the id of the topic; None until the brokers were asked, as what follows. `position`:
    the highest offset that the vectors have. `forgotten`: keys that are deleted together with the
    document at `first_offset`, the first one after that.
    """

    last_offset: int = NOTHING_YET
    topic: str | None = None
    position: int = NOTHING_YET
    forgotten: Sequence[bytes] = ()
    first_offset: int | None = None


class VectorRecords:
    """Thread-safe. What asks the brokers blocks, and raises `RetryableError`."""

    def __init__(self, logs: CorpusLogs, clock: Clock) -> None:
        self._logs = logs
        self._clock = clock
        self._lock = threading.Lock()
        self._places: dict[TopicPartition, _Place] = {}

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions may have had another indexer: they are looked at again."""
        with self._lock:
            self._places |= {at: _Place() for at in partitions}

    def took(self, unit: Unit[Any]) -> None:
        """A document was taken in; those of a partition in their order."""
        with self._lock:
            place = self._places.setdefault(unit.at, _Place())
            place.last_offset = max(place.last_offset, unit.source.offset)

    def is_new(self, unit: Unit[Any]) -> bool:
        """Returns whether the vectors have neither this document nor a later one of its partition.

        An indexer reads documents again whose positions were lost. Their records would have a lower
        offset than those before them, and a reader passes over such ones; but a compaction keeps
        these alone, so nothing would be left. Blocks. Called for documents in their order.
        """
        place, offset = self._place(unit), unit.source.offset
        if offset > place.position and place.first_offset is None:
            place.first_offset = offset
        return offset > place.position

    def outputs(self, unit: Unit[Any], record: DocumentVectors) -> tuple[Output, ...]:
        """Returns the record, in the partition of its document; none for one that is not new.

        What the log of documents has forgotten is deleted before it, at the position of the
        vectors. Blocks. Raises `RecordError` where the record is larger than its topic takes.
        """
        place, offset = self._place(unit), unit.source.offset
        if not self.is_new(unit) or not unit.message.key:
            return ()
        forgotten = place.forgotten if offset == place.first_offset else ()
        deletes = [
            self._output(unit, key, msgspec.structs.replace(DELETED, offset=place.position), number)
            for number, key in enumerate(forgotten, start=1)
        ]
        is_behind = self._is_behind(unit, place)
        record = msgspec.structs.replace(record, offset=offset, is_behind=is_behind)
        own = self._output(unit, unit.message.key, record)
        if not fits(own, VECTORS):
            raise RecordError(
                "too_large",
                f"its passages and vectors make a record of {len(own.value or b'')} bytes, and "
                f"{VECTORS.name} takes {VECTORS.max_message_bytes}: publish it in parts, each with "
                "a key of its own",
            )
        return (*deletes, own)

    def _output(
        self, unit: Unit[Any], key: bytes, record: DocumentVectors, number: int = 0
    ) -> Output:
        value, headers = encode(
            msgspec.structs.replace(record, topic=self._place(unit).topic or ""),
            event_id=f"{unit.source.record}/vectors{f'/{number}' if number else ''}",
            source="carpool/indexer",
            time_us=self._clock.now_us(),
        )
        partition = unit.source.partition
        return Output(
            topic=VECTORS.name, key=key, value=value, headers=headers, partition=partition
        )

    def _is_behind(self, unit: Unit[Any], place: _Place) -> bool:
        """Whether documents may be missing between this one and the next, which then is there."""
        age_us = self._clock.now_us() - unit.message.written_us
        if age_us <= OLD_MS * 1_000:
            return False
        return place.last_offset > unit.source.offset or self._logs.has_more(unit.source)

    def _place(self, unit: Unit[Any]) -> _Place:
        with self._lock:
            place = self._places.setdefault(unit.at, _Place())
        if place.topic is None:
            partition, topic = unit.source.partition, self._logs.topic_id()
            last = self._logs.last_vectors(partition)
            if last is not None and (found := _read_vectors(last)).topic == topic:
                place.position = found.offset
                if self._may_lack_deletes(unit, last, place):
                    place.forgotten = _forgotten_keys(self._logs, partition)
            place.topic = topic  # last: it says that the rest is known
        return place

    def _may_lack_deletes(self, unit: Unit[Any], last: Message, place: _Place) -> bool:
        """Whether brokers may have removed null records after the position of the vectors.

        They were written after the last record of vectors was, or while this service was late.
        """
        since_us = min(last.written_us, unit.message.written_us)
        is_late = self._clock.now_us() - since_us >= self._logs.nulls_ms * 500
        return is_late or self._logs.first_document(unit.source.partition) > place.position + 1


def _forgotten_keys(logs: CorpusLogs, partition: int) -> list[bytes]:
    """Returns the keys with passages in a partition of vectors that the documents do not have.

    Reads both logs, and keeps 100 bytes a document. Blocks: a gigabyte takes some seconds.
    """
    log.warning("reading a partition for lost deletes", partition=partition)
    known = {digest_of(each.key or b"") for each in logs.records(DOCUMENTS.name, partition)}
    found: dict[bytes, None] = {}
    for message in logs.records(VECTORS.name, partition):
        key = message.key or b""
        if digest_of(key) not in known:
            found.pop(key, None)
            if _read_vectors(message).passages:
                found[key] = None
    log.warning(
        "documents are deleted, as the log of documents has forgotten them", documents=len(found)
    )
    return list(found)


def _read_vectors(message: Message) -> DocumentVectors:
    """Returns a record of vectors. Raises `DeploymentError` where this build cannot read it."""
    try:
        return decode(DocumentVectors, message.value, message.headers)
    except RecordError as error:
        raise DeploymentError(
            f"{message.source.place} cannot be read by this build: {error}. A newer indexer wrote "
            "it, or another program: deploy matching versions, and let only indexers write this "
            "topic. No document is indexed until then"
        ) from None

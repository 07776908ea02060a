"""Reads the logs of the corpus: which documents there are, and what the indexer made of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from carpool.clock import Clock
from carpool.corpus.bases import Bases
from carpool.digest import digest_of
from carpool.kafka.records import Message
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_ids import TopicIds
from carpool.kafka.topic_reader import read_topic
from producers.corpus.plan import digest_of_content
from schemas.codec import decode
from schemas.document import DocumentKey, DocumentVectors, parse_key
from schemas.document_codec import decode_document
from schemas.errors import RecordError
from schemas.topics import BASES, DOCUMENTS, VECTORS

READER = "corpus"
REFUSALS_MAX = 1_000
"""Refusals whose reasons are told: the last ones."""
UNREADABLE = b""
"""The digest of a document that cannot be read: no other one has it."""
_PASSAGE = re.compile(r"#[0-9]{1,3}\Z")


def topic_id(kafka: KafkaSettings) -> str:
    """Returns the id of `rag.documents.v1`; "" from brokers without. Raises `RetryableError`."""
    return TopicIds(kafka).now([DOCUMENTS.name]).get(DOCUMENTS.name, "")


def indexed(message: Message, topic: str) -> DocumentVectors | None:
    """Returns a record of `rag.vectors.v1` of documents in the topic with the id `topic`.

    None for one that cannot be read, and for one of an earlier topic of that name.
    """
    try:
        found = decode(DocumentVectors, message.value, message.headers)
    except RecordError:
        return None
    return found if found.topic == topic else None


def read_known(messages: Iterable[Message], owner: str) -> dict[str, bytes]:
    """Returns the digests of the documents of an owner, by id. `messages`: of all documents."""
    known: dict[str, bytes] = {}
    for message in messages:
        try:
            key = parse_key(message.key)
        except RecordError:
            continue
        if key.owner != owner:
            continue
        known.pop(key.id, None)
        if message.value is None:
            continue
        try:
            _, document = decode_document(message.key, message.value, message.headers)
            known[key.id] = UNREADABLE if document is None else digest_of_content(document)
        except RecordError:
            known[key.id] = UNREADABLE
    return known


def names_of(name: str, owner: str | None) -> list[DocumentKey]:
    """Returns the documents that people may mean by `name`, which a citation may have shown.

    Without an owner it is an id alone, or `owner/id`. What follows `#` may be a passage.
    """
    keys = []
    for each in dict.fromkeys((name, _PASSAGE.sub("", name))):
        head, _, tail = each.partition("/")
        keys.append(DocumentKey(owner or "", each))
        if owner is None and head and tail:
            keys.append(DocumentKey(head, tail))
    return keys


def newest(
    kafka: KafkaSettings, clock: Clock, topic: str, keys: Collection[bytes]
) -> dict[bytes, Message]:
    """Returns the last record of each key that has one, of documents or of vectors.

    Reads the partitions of the keys to their ends. Blocks. Raises as `read_topic` does.
    """
    messages = read_topic(kafka, clock, topic, name=READER, keys=keys)
    return {each.key: each for each in messages if each.key is not None and each.key in keys}


def document_state(kafka: KafkaSettings, clock: Clock, message: Message) -> dict[str, Any]:
    """Returns what is known of the document of a record: its fields, and those of its passages.

    `indexer`: what it has made of this revision. Blocks. Raises as `read_topic` does.
    """
    place, raw_key = message.source, message.key or b""
    found: dict[str, Any] = parse_key(raw_key)._asdict()
    put = datetime.fromtimestamp(place.timestamp_ms // 1_000, UTC).replace(tzinfo=None)
    found |= {"partition": place.partition, "offset": place.offset, "put": f"{put.isoformat()}Z"}
    found |= {"deleted": message.value is None, "indexer": "waits"}
    try:
        _, document = decode_document(raw_key, message.value, message.headers)
        found |= msgspec.to_builtins(document) or {}
    except RecordError as error:
        found["error"] = str(error)
    record = newest(kafka, clock, VECTORS.name, [raw_key]).get(raw_key)
    made = None if record is None else indexed(record, topic_id(kafka))
    if made is None or made.offset < place.offset:
        return found
    if made.refused is not None:
        return found | {"indexer": "refuses it", "refused": made.refused}
    return found | {"indexer": "has it", "passages": msgspec.to_builtins(made.passages)}


def corpus_state(kafka: KafkaSettings, clock: Clock) -> dict[str, Any]:
    """Returns the state of the corpus. Reads all of its logs, and blocks.

    `refusals`: the reasons of the last `REFUSALS_MAX`, by key.

    Memory: 200 bytes a document. Raises as `read_topic` does.
    """
    topic, position = topic_id(kafka), dict[int, int]()
    passages, refused, refusals = dict[bytes, int](), set[bytes](), dict[str, str]()
    for message in read_topic(kafka, clock, VECTORS.name, name=READER):
        made, number = indexed(message, topic), message.source.partition
        if made is None or made.offset < position.get(number, -1):
            continue
        position[number] = made.offset
        key = message.key or b""
        digest, name = digest_of(key), key.decode(errors="replace")
        passages[digest] = len(made.passages)
        refused.discard(digest)
        refusals.pop(name, None)
        if made.refused is not None:
            refused.add(digest)
            refusals[name] = made.refused
            if len(refusals) > REFUSALS_MAX:
                del refusals[next(iter(refusals))]
    bases, counts = Bases(), [count for count in passages.values() if count]
    documents = _count(read_topic(kafka, clock, DOCUMENTS.name, name=READER), position, clock)
    for message in read_topic(kafka, clock, BASES.name, name=READER):
        bases.hear(message)
    return {
        **documents,
        "indexed": len(counts),
        "passages": sum(counts),
        "refused": len(refused),
        "refusals": refusals,
        "position": dict(sorted(position.items())),
        "base": None if bases.current is None else msgspec.to_builtins(bases.current),
    }


def _count(messages: Iterator[Message], position: dict[int, int], clock: Clock) -> dict[str, Any]:
    present, waiting = set[bytes](), Counter[int]()
    now_us = oldest_us = clock.now_us()
    for message in messages:
        digest, at = digest_of(message.key or b""), message.source
        (present.discard if message.value is None else present.add)(digest)
        if at.offset > position.get(at.partition, -1):
            waiting[at.partition] += 1
            oldest_us = min(oldest_us, message.written_us)
    oldest_s = (now_us - oldest_us) / 1_000_000 if waiting else None
    return {
        "documents": len(present),
        "waiting": dict(sorted(waiting.items())),
        "oldest_waiting_s": oldest_s,
    }

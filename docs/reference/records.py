"""Writes `schemas/json/` and `schemas/asyncapi.json` from the types of records.

`python docs/reference/records.py`; a test compares the files with the types.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from schemas.answer import Answer, PartialAnswer
from schemas.batch import Batch
from schemas.cancel import Cancel
from schemas.codec import EVENT_TYPES, PASSED_ON, SCHEMAS
from schemas.deadletter import DeadLetterMark
from schemas.document import Base, Document, DocumentVectors
from schemas.files import FilePiece, StoredFile
from schemas.group import Group
from schemas.headers import HEADERS, IGNORED_NAMES, KEY_HEADER, REPLAYED_FROM_HEADER, RETRY_HEADERS
from schemas.query import Query
from schemas.record import Record
from schemas.retrieval import Retrieval
from schemas.topics import (
    ANSWERS,
    BASES,
    BATCHES,
    CANCELS,
    DEAD_LETTER_MARKS,
    DEAD_LETTER_SUFFIX,
    DOCUMENTS,
    FILE_PIECES,
    FILES,
    GROUPS,
    PARTIAL_ANSWERS,
    QUERIES,
    QUERIES_BATCH,
    QUERY_TOPICS,
    RETRIEVALS,
    RETRIEVALS_BATCH,
    RETRY_TOPICS,
    TOPICS,
    VECTORS,
    Topic,
)

FOLDER = Path(__file__).parents[2] / "schemas/json"

RECORDS: dict[str, type[Record]] = {
    QUERIES.name: Query,
    GROUPS.name: Group,
    RETRIEVALS.name: Retrieval,
    ANSWERS.name: Answer,
    PARTIAL_ANSWERS.name: PartialAnswer,
    CANCELS.name: Cancel,
    BATCHES.name: Batch,
    FILES.name: StoredFile,
    FILE_PIECES.name: FilePiece,
    DOCUMENTS.name: Document,
    VECTORS.name: DocumentVectors,
    BASES.name: Base,
    DEAD_LETTER_MARKS.name: DeadLetterMark,
}


def schema_of(topic: str) -> dict[str, Any]:
    """Returns the JSON Schema (2020-12) of the records of a topic.

    A query may lack `query_id`, because it then gets one (see `schemas.codec.decode_query`).
    """
    kind = RECORDS[topic]
    schema = msgspec.json.schema(kind)
    for definition in schema["$defs"].values():
        if "description" in definition:
            parts = definition["description"].split("\n\n")
            definition["description"] = "\n\n".join(" ".join(part.split()) for part in parts)
    if kind is Query:
        schema["$defs"]["Query"]["required"] = []
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMAS[kind],
        "title": f"{topic} ({EVENT_TYPES[kind]})",
        **schema,
    }


def generate() -> dict[Path, bytes]:
    """Returns path and content of each JSON Schema, and of the AsyncAPI document."""
    files = {topic: f"json/{topic}.schema.json" for topic in RECORDS}
    documents = {FOLDER.parent / files[topic]: schema_of(topic) for topic in RECORDS}
    documents[FOLDER.parent / "asyncapi.json"] = asyncapi(files)
    return {
        path: msgspec.json.format(msgspec.json.encode(document, order="deterministic")) + b"\n"
        for path, document in documents.items()
    }


ANSWERED_EARLIER = (RETRIEVALS, RETRIEVALS_BATCH)
"""Their records are retrievals, or answers of queries that ended before they had one."""
OF_APPLICATIONS = (QUERIES, QUERIES_BATCH, ANSWERS, PARTIAL_ANSWERS, CANCELS, DOCUMENTS)


def asyncapi(schema_files: dict[str, str]) -> dict[str, Any]:
    """Returns the document. `schema_files`: the file of each topic's JSON Schema, relative to it.

    Operations are those of Carpool: it receives queries and sends answers. Topics between the
    services have the tag `internal`: only services write them.
    """
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Carpool",
            "version": "1",
            "description": "Retrieval middleware for RAG. Applications send queries to a topic of "
            "Apache Kafka and receive answers, with citations, from another one. If the services "
            "have a prefix, each address begins with it and a dot.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {_name(topic): _channel(topic) for topic in TOPICS},
        "operations": {
            "receiveQuery": _operation(
                QUERIES,
                "A question. Each record gets exactly one terminal answer, unless its compressed "
                "batch cannot be unpacked.",
            ),
            "receiveBatchQuery": _operation(
                QUERIES_BATCH, "A question that may wait for those of `receiveQuery`."
            ),
            "receiveCancel": _operation(
                CANCELS, "Withdraws a question, which then ends as `cancelled`; best effort."
            ),
            "receiveDocument": _operation(
                DOCUMENTS,
                "A document of the corpus with all its passages, which replaces its earlier "
                "revision; null deletes it.",
            ),
            "sendAnswer": _operation(ANSWERS, "The terminal answer to a question of either class."),
            "sendPartialAnswer": _operation(
                PARTIAL_ANSWERS,
                "A piece of an answer as it is written, or, with `step`, a finished step of a "
                "workflow; best effort.",
            ),
        },
        "components": {
            "messages": {_name(topic): _message(topic, schema_files) for topic in TOPICS}
        },
    }


def _operation(topic: Topic, summary: str) -> dict[str, Any]:
    action = "send" if topic in (ANSWERS, PARTIAL_ANSWERS) else "receive"
    operation = {"action": action, "channel": _channel_of(topic), "summary": summary}
    if topic.name in QUERY_TOPICS:
        operation["reply"] = {"channel": _channel_of(ANSWERS)}
    return operation


def _name(topic: Topic) -> str:
    """Returns the topic's key in the document, which may not have dots."""
    return topic.name.replace(".", "-")


def _channel_of(topic: Topic) -> dict[str, str]:
    return {"$ref": f"#/channels/{_name(topic)}"}


def _channel(topic: Topic) -> dict[str, Any]:
    config: dict[str, Any] = {
        "cleanup.policy": list(topic.cleanup),
        "max.message.bytes": topic.max_message_bytes,
        "retention.ms": max(-1, topic.retention_ms),
    }
    tag = "application" if topic in OF_APPLICATIONS else "internal"
    return {
        "address": topic.name,
        "description": topic.purpose,
        "tags": [{"name": tag}],
        "messages": {"record": {"$ref": f"#/components/messages/{_name(topic)}"}},
        "bindings": {"kafka": {"topicConfiguration": config, "bindingVersion": "0.5.0"}},
    }


def _message(topic: Topic, schema_files: dict[str, str]) -> dict[str, Any]:
    names = _header_names(topic)
    headers = {
        each.name: {"type": "string", "description": each.meaning}
        for each in HEADERS
        if each.name in names
    }
    message: dict[str, Any] = {
        "title": topic.purpose,
        "headers": {"type": "object", "properties": headers},
        "bindings": {"kafka": _key(topic) | {"bindingVersion": "0.5.0"}},
    }
    like = topic.name.replace(".batch.", ".").replace(".draft.", ".").replace("retries", "queries")
    file = schema_files.get(like)
    if file is None or topic.name.endswith(DEAD_LETTER_SUFFIX):
        message["contentType"] = "application/octet-stream"
        message["payload"] = {"description": "the bytes of the record that could not be used"}
    else:
        shapes = [file, schema_files[ANSWERS.name]] if topic in ANSWERED_EARLIER else [file]
        payload = [{"$ref": each} for each in shapes]
        message["payload"] = payload[0] if len(payload) == 1 else {"oneOf": payload}
    return message


def _header_names(topic: Topic) -> set[str]:
    """Returns the headers that a record of the topic may have."""
    envelope = {each.name for each in HEADERS if each.writer == "any CloudEvents writer"}
    of_query = envelope | {each.name for each in HEADERS if each.writer == "application"}
    if topic.name in QUERY_TOPICS:
        return of_query | {REPLAYED_FROM_HEADER}
    if topic.name in RETRY_TOPICS:
        ignored = set(IGNORED_NAMES.values())
        return of_query | ignored | {*RETRY_HEADERS, KEY_HEADER, REPLAYED_FROM_HEADER}
    if topic.name.endswith(DEAD_LETTER_SUFFIX):
        return {each.name for each in HEADERS} - set(RETRY_HEADERS)
    if topic.partition_by == "query_id":
        return envelope | set(PASSED_ON)
    return envelope | {"traceparent"}


def _key(topic: Topic) -> dict[str, Any]:
    """Returns the key of the topic's records, as the Kafka binding describes it."""
    if topic.name in QUERY_TOPICS:
        meaning = "any; it chooses the partition, and is no id"
    elif topic == ANSWERS:
        meaning = (
            "the query_id; of an answer that must not supersede an `ok` one of this id: "
            "query_id@topic/partition/offset"
        )
    elif topic == BATCHES:
        meaning = "the batch_id"
    elif topic.partition_by == "document":
        meaning = 'the document: ["owner","id"] as JSON without spaces, or the text of an id'
    elif topic.partition_by == "query_id":
        meaning = "the query_id"
    else:
        return {}
    return {"key": {"type": "string", "description": meaning}}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, content in generate().items():
        path.write_bytes(content)
        sys.stdout.write(f"{path.relative_to(FOLDER.parent.parent)}\n")

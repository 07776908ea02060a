"""Generates `schemas/json/` and `schemas/asyncapi.json`: `python -m schemas.jsonschema`.

A test compares the files with the types.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from schemas.answer import Answer, PartialAnswer
from schemas.asyncapi import asyncapi
from schemas.batch import Batch
from schemas.cancel import Cancel
from schemas.codec import EVENT_TYPES, SCHEMAS
from schemas.deadletter import DeadLetterMark
from schemas.document import Base, Document, DocumentVectors
from schemas.group import Group
from schemas.query import Query
from schemas.record import Record
from schemas.retrieval import Retrieval
from schemas.topics import (
    ANSWERS,
    BASES,
    BATCHES,
    CANCELS,
    DEAD_LETTER_MARKS,
    DOCUMENTS,
    GROUPS,
    PARTIAL_ANSWERS,
    QUERIES,
    RETRIEVALS,
    VECTORS,
)

FOLDER = Path(__file__).parent / "json"

RECORDS: dict[str, type[Record]] = {
    QUERIES.name: Query,
    GROUPS.name: Group,
    RETRIEVALS.name: Retrieval,
    ANSWERS.name: Answer,
    PARTIAL_ANSWERS.name: PartialAnswer,
    CANCELS.name: Cancel,
    BATCHES.name: Batch,
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


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, content in generate().items():
        path.write_bytes(content)
        sys.stdout.write(f"{path.relative_to(FOLDER.parent.parent)}\n")

"""Generates the JSON Schemas of the records in `schemas/json/`: `python -m schemas.jsonschema`.

A test compares the files with the types.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from schemas.answer import Answer, PartialAnswer
from schemas.codec import EVENT_TYPES, SCHEMAS
from schemas.deadletter import DeadLetterMark
from schemas.group import Group
from schemas.query import Query
from schemas.record import Record
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, DEAD_LETTER_MARKS, GROUPS, PARTIAL_ANSWERS, QUERIES, RETRIEVALS

FOLDER = Path(__file__).parent / "json"

RECORDS: dict[str, type[Record]] = {
    QUERIES.name: Query,
    GROUPS.name: Group,
    RETRIEVALS.name: Retrieval,
    ANSWERS.name: Answer,
    PARTIAL_ANSWERS.name: PartialAnswer,
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
            definition["description"] = _unwrapped(definition["description"])
    if kind is Query:
        schema["$defs"]["Query"]["required"] = []
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMAS[kind],
        "title": f"{topic} ({EVENT_TYPES[kind]})",
        **schema,
    }


def _unwrapped(docstring: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in docstring.split("\n\n"))


def generate() -> dict[Path, bytes]:
    """Returns each schema file's path and content."""
    return {
        FOLDER / f"{topic}.schema.json": msgspec.json.format(
            msgspec.json.encode(schema_of(topic), order="deterministic")
        )
        + b"\n"
        for topic in RECORDS
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, content in generate().items():
        path.write_bytes(content)
        sys.stdout.write(f"{path.relative_to(FOLDER.parent.parent)}\n")

"""Stored bytes of version 1: records and commit metadata of earlier builds are read as they were.

A stored sample is never rewritten: such bytes are in the topics of users. `python -m
tests.compat.test_stored_records` writes samples that are missing.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from carpool.kafka.commit_metadata import decode_metadata, encode_metadata, instance_id_of
from schemas.codec import decode, encode
from schemas.jsonschema import RECORDS
from schemas.record import Record
from schemas.topics import ANSWERS, GROUPS, QUERIES, RETRIEVALS
from tests.records import a_group, a_grouped_query, a_query, a_retrieval, an_answer

FOLDER = Path(__file__).parent / "v1-records"
STORED = (QUERIES.name, GROUPS.name, RETRIEVALS.name, ANSWERS.name)
METADATA: dict[str, dict[str, Any]] = {
    "": {"whole": [], "parts": {}},
    "1;2+3,9+1": {"whole": [[102, 104], [109, 109]], "parts": {}},
    "1;0:0-2.5,7+2": {"whole": [[107, 108]], "parts": {"100": [0, 1, 2, 5]}},
    "2;searcher-0;": {"whole": [], "parts": {}},
    "2;searcher-0;1+4,6:3": {"whole": [[101, 104]], "parts": {"106": [3]}},
}
LOW = 100
"""The committed offset of every sample of metadata, with what is complete after it."""


def sample_of(topic: str) -> Record:
    samples = {
        QUERIES.name: lambda: a_query("q-1", "When was the Eiffel Tower built?"),
        GROUPS.name: lambda: a_group(a_grouped_query("q-1", (3, 1))),
        RETRIEVALS.name: lambda: a_retrieval("q-1"),
        ANSWERS.name: lambda: an_answer("q-1"),
    }
    made: Record = samples[topic]()
    return made


def write(topic: str) -> None:
    value, headers = encode(
        sample_of(topic), event_id="e-1", source="carpool/test", time_us=1_700_000_000_000_000
    )
    stored = {
        "value": base64.b64encode(value).decode(),
        "headers": [[name, base64.b64encode(it or b"").decode()] for name, it in headers],
        "decoded": msgspec.to_builtins(sample_of(topic)),
    }
    (FOLDER / f"{topic}.json").write_text(json.dumps(stored, indent=1) + "\n")


@pytest.mark.parametrize("topic", STORED)
def test_a_stored_record_is_read_as_it_was_written(topic: str) -> None:
    stored = json.loads((FOLDER / f"{topic}.json").read_text())
    headers = tuple((name, base64.b64decode(it)) for name, it in stored["headers"])
    record = decode(RECORDS[topic], base64.b64decode(stored["value"]), headers)
    found = json.loads(msgspec.json.encode(record))
    assert {name: found[name] for name in stored["decoded"]} == stored["decoded"]


@pytest.mark.parametrize("text", METADATA)
def test_stored_commit_metadata_is_read_as_it_was_written(text: str) -> None:
    completed = decode_metadata(LOW, text)
    wanted = METADATA[text]
    assert [list(run) for run in completed.whole] == wanted["whole"]
    assert {str(at): sorted(done) for at, done in completed.parts.items()} == wanted["parts"]
    assert instance_id_of(text) == ("searcher-0" if text.startswith("2;") else None)
    if text.startswith("1;"):
        assert encode_metadata(LOW, completed) == text


if __name__ == "__main__":
    for name in STORED:
        if not (FOLDER / f"{name}.json").exists():
            write(name)

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

from carpool.dead_letters.letter import read_letter, replay_output
from carpool.kafka.commit_metadata import decode_metadata, encode_metadata, head_of
from carpool.loop.retry import FailureLimits, begin_us_of, decide_retry
from carpool.origins import attempt_of, origin_of, read_query
from schemas.answer import PartialAnswer
from schemas.cancel import Cancel
from schemas.codec import decode, encode
from schemas.deadletter import DeadLetterMark
from schemas.files import FilePiece
from schemas.headers import ATTEMPT_HEADER, tenant_of
from schemas.record import Headers, Record, Source
from schemas.retrieval import Retrieval
from schemas.topics import (
    ANSWERS,
    BASES,
    BATCHES,
    CANCELS,
    DEAD_LETTER_MARKS,
    DOCUMENTS,
    FILE_PIECES,
    FILES,
    GROUPS,
    PARTIAL_ANSWERS,
    QUERIES,
    QUERIES_DEAD,
    RETRIES,
    RETRIEVAL_DRAFTS,
    RETRIEVALS,
    VECTORS,
)
from tests.records import (
    a_base,
    a_batch,
    a_document,
    a_failure,
    a_file,
    a_group,
    a_grouped_query,
    a_message,
    a_query,
    a_retrieval,
    an_answer,
    some_hits,
    some_vectors,
)
from tests.scripts import load_script

RECORDS = load_script("docs/reference/records.py").RECORDS
FOLDER = Path(__file__).parent / "v1-records"
STORED = (
    QUERIES.name,
    GROUPS.name,
    RETRIEVALS.name,
    RETRIEVAL_DRAFTS.name,
    ANSWERS.name,
    PARTIAL_ANSWERS.name,
    CANCELS.name,
    BATCHES.name,
    DOCUMENTS.name,
    VECTORS.name,
    BASES.name,
    DEAD_LETTER_MARKS.name,
    FILES.name,
    FILE_PIECES.name,
)
WITHOUT_SCHEMA = (RETRIES.name, QUERIES_DEAD.name)
"""Queries with headers of the services, which other services and `carpool dlq` read."""
ORIGIN = Source(topic=QUERIES.name, partition=2, offset=99, timestamp_ms=1_699_999_999_000)
WRITTEN_US = 1_700_000_000_000_000
METADATA: dict[str, dict[str, Any]] = {
    "": {"whole": [], "parts": {}},
    "1;2+3,9+1": {"whole": [[102, 104], [109, 109]], "parts": {}},
    "1;0:0-2.5,7+2": {"whole": [[107, 108]], "parts": {"100": [0, 1, 2, 5]}},
    "2;searcher-0;": {"whole": [], "parts": {}},
    "3;2.10!;searcher-0;1+4": {"whole": [[101, 104]], "parts": {}},
    "2;searcher-0;1+4,6:3": {"whole": [[101, 104]], "parts": {"106": [3]}},
}
LOW = 100
"""The committed offset of every sample of metadata, with what is complete after it."""


def sample_of(topic: str) -> Record:
    samples = {
        QUERIES.name: lambda: a_query("q-1", "When was the Eiffel Tower built?"),
        GROUPS.name: lambda: a_group(a_grouped_query("q-1", (3, 1))),
        RETRIEVALS.name: lambda: a_retrieval("q-1"),
        RETRIEVAL_DRAFTS.name: lambda: a_retrieval(
            "q-1", some_hits(), is_final=False, clusters_done=4, clusters_total=20
        ),
        ANSWERS.name: lambda: an_answer("q-1"),
        PARTIAL_ANSWERS.name: lambda: PartialAnswer(
            query_id="q-1", generation_id="g-1", seq=3, text="In 1889"
        ),
        BATCHES.name: a_batch,
        FILES.name: a_file,
        FILE_PIECES.name: lambda: FilePiece(upload="u", data=b"a\n"),
        DOCUMENTS.name: a_document,
        VECTORS.name: some_vectors,
        BASES.name: a_base,
        CANCELS.name: lambda: Cancel(query_id="q-1", source=ORIGIN),
        DEAD_LETTER_MARKS.name: lambda: DeadLetterMark(
            letter=ORIGIN, action="replayed", marked_us=WRITTEN_US
        ),
    }
    made: Record = samples[topic]()
    return made


def written(topic: str) -> tuple[bytes, Headers, Any]:
    """Returns value and headers of a sample, and what a reader makes of them."""
    if topic in STORED:
        value, headers = encode(
            sample_of(topic), event_id="e-1", source="carpool/test", time_us=WRITTEN_US
        )
        return value, headers, msgspec.to_builtins(sample_of(topic))
    tried_twice = (("rag-tenant", b"t-1"), (ATTEMPT_HEADER, b"2"))
    failure = a_failure(sample_of(QUERIES.name), source=ORIGIN, headers=tried_twice).failure
    assert failure is not None
    limits = FailureLimits(attempts_max=3 if topic == RETRIES.name else 2)
    (output,) = decide_retry(
        failure, attempt=2, limits=limits, group="carpool-searcher", now_us=WRITTEN_US
    ).outputs
    assert output.topic == topic
    return output.value, output.headers, read_again(topic, output.value, output.headers)


def read_again(topic: str, value: bytes, headers: Headers) -> dict[str, Any]:
    """Returns what the reader of a retry, or of a dead letter, makes of it."""
    message = a_message(topic, 7, value=value, headers=headers, received_us=WRITTEN_US)
    if topic == RETRIES.name:
        return {
            "query": msgspec.to_builtins(read_query(message)),
            "origin": msgspec.to_builtins(origin_of(message)),
            "attempt": attempt_of(headers),
            "begin_us": begin_us_of(message, retry_delay_us=60_000_000),
            "tenant": tenant_of(headers),
        }
    letter = read_letter(message)
    again = replay_output(letter)
    return {
        "errors": letter.errors,
        "reason": letter.reason,
        "topic": again.topic,
        "value": again.value.decode(),
        "headers": [[name, (it or b"").decode()] for name, it in again.headers],
    }


def write(topic: str) -> None:
    value, headers, decoded = written(topic)
    stored = {
        "value": base64.b64encode(value).decode(),
        "headers": [[name, base64.b64encode(it or b"").decode()] for name, it in headers],
        "decoded": decoded,
    }
    (FOLDER / f"{topic}.json").write_text(json.dumps(stored, indent=1) + "\n")


def stored_sample(topic: str) -> tuple[bytes, Headers, Any]:
    stored = json.loads((FOLDER / f"{topic}.json").read_text())
    headers = tuple((name, base64.b64decode(it)) for name, it in stored["headers"])
    return base64.b64decode(stored["value"]), headers, stored["decoded"]


@pytest.mark.parametrize("topic", STORED)
def test_a_stored_record_is_read_as_it_was_written(topic: str) -> None:
    value, headers, decoded = stored_sample(topic)
    kind = Retrieval if topic == RETRIEVAL_DRAFTS.name else RECORDS[topic]
    found = json.loads(msgspec.json.encode(decode(kind, value, headers)))
    assert {name: found[name] for name in decoded} == decoded


@pytest.mark.parametrize("topic", WITHOUT_SCHEMA)
def test_a_stored_retry_or_letter_is_read_as_it_was_written(topic: str) -> None:
    value, headers, decoded = stored_sample(topic)
    found = json.loads(msgspec.json.encode(read_again(topic, value, headers)))
    assert found.keys() == decoded.keys()
    if topic == RETRIES.name:  # later versions may add fields
        found["query"] = {name: found["query"][name] for name in decoded["query"]}
    assert found == decoded


@pytest.mark.parametrize("text", METADATA)
def test_stored_commit_metadata_is_read_as_it_was_written(text: str) -> None:
    completed = decode_metadata(LOW, text)
    wanted = METADATA[text]
    assert [list(run) for run in completed.whole] == wanted["whole"]
    assert {str(at): sorted(done) for at, done in completed.parts.items()} == wanted["parts"]
    assert head_of(text).instance_id == ("searcher-0" if "searcher-0" in text else None)
    if text.startswith("1;"):
        assert encode_metadata(LOW, completed) == text


if __name__ == "__main__":
    for name in (*STORED, *WITHOUT_SCHEMA):
        if not (FOLDER / f"{name}.json").exists():
            write(name)

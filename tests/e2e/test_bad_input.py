"""Every malformed kind ends in the dead letters with its reason; whoever can be answered is; the rest goes on."""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.stack import Stack
from carpool.disk.manifest import read_manifest
from schemas.record import Headers
from schemas.topics import ANSWERS, QUERIES, QUERIES_DEAD
from tests.e2e.support import Publisher, quick_settings, read_all


@dataclass(frozen=True)
class Bad:
    """A malformed record, the reason it must be refused for, and the id to answer to where it has one."""

    value: bytes | None
    reason: str
    query_id: str | None = None
    headers: Headers = ()


def vector(values: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def body(query_id: str, **fields: object) -> bytes:
    return json.dumps({"query_id": query_id, **fields}).encode()


def bad_records(largest: int) -> list[Bad]:
    return [
        Bad(b'{"query_id": "bad-1", "text": ', "not_json"),
        Bad(b"no json", "not_json", "bad-2", (("content-type", b"application/json"), ("ce_id", b"bad-2"))),
        Bad(body("bad-3", text=["a", "list"]), "wrong_type", "bad-3"),
        Bad(body("bad-4", text="x", top_k="three"), "wrong_type", "bad-4"),
        Bad(body("bad-5"), "missing_field", "bad-5"),
        Bad(body("bad-6", vector=vector([1.0])), "missing_field", "bad-6"),
        Bad(bytes(900_000), "too_large", "bad-7", (("ce_id", b"bad-7"),)),
        Bad(bytes(900_000), "too_large"),
        Bad(b"x" * largest, "too_large"),
        Bad(body("bad-10", vector=vector([1.0, 2.0, 3.0]), embedding_model="hashing:64"), "wrong_dimension", "bad-10"),
        Bad(body("bad-11", vector=vector([1.0] * 64), embedding_model="another"), "wrong_model", "bad-11"),
        Bad(body("bad-12", text="x"), "unknown_version", "bad-12", (("ce_dataschema", b"urn:carpool:query:99"),)),
        Bad(body("bad-13", text="x"), "unknown_version", "bad-13", (("ce_specversion", b"9.9"),)),
        Bad(b"caf\xe9 au lait?", "invalid_utf8"),
        Bad(b'{"query_id": "bad-15", "text": "caf\xe9"}', "invalid_utf8"),
        Bad(b"", "empty"),
        Bad(None, "empty", "bad-17", (("ce_id", b"bad-17"),)),
        Bad(body("bad-18", text="x", filter={"lang": "en"}), "unsupported", "bad-18"),
        Bad(body("bad-19", text="x", workflow={"root_id": "r"}), "unsupported", "bad-19"),
        Bad(body("bad-20", text="x", tenant="acme"), "unsupported", "bad-20"),
        Bad(body("bad-21", text="x", nprobe=60_000), "invalid_value", "bad-21"),
        Bad(body("bad-22", vector=vector([0.0] * 64), embedding_model="MODEL"), "invalid_value", "bad-22"),
    ]


def largest_accepted(publisher: Publisher) -> int:
    """The largest value that the topic of queries takes; writes that one record."""
    for size in range(QUERIES.max_message_bytes, QUERIES.max_message_bytes - 400, -4):
        if publisher.send(QUERIES.name, b"y" * size) is None:
            return size
    raise AssertionError("the topic takes nothing near its limit")


@pytest.mark.timeout(180)
def test_malformed_records_are_refused_by_name_and_the_others_are_answered(
    fresh_broker: str, small_index: Path, tmp_path: Path
) -> None:
    publisher = Publisher(fresh_broker)
    largest = largest_accepted(publisher)
    fingerprint = read_manifest(small_index).embedding_model
    bad = bad_records(largest)
    good = []
    for number, each in enumerate(bad):
        good.append(f"good-{number}")
        publisher.queue(QUERIES.name, body(good[-1], text=f"what of the river and comet {number}?"))
        value = each.value.replace(b'"MODEL"', f'"{fingerprint}"'.encode()) if each.value else each.value
        publisher.queue(QUERIES.name, value, headers=each.headers)
    publisher.flush()
    answerable = {each.query_id for each in bad if each.query_id}

    with Stack(
        bootstrap=fresh_broker, index_dir=small_index, work_dir=tmp_path / "run", settings=quick_settings("bad-input")
    ):
        letters = read_all(
            fresh_broker, QUERIES_DEAD.name, until=lambda found: len(found) >= len(bad) + 1, timeout_s=60
        )
        answers = read_all(
            fresh_broker,
            ANSWERS.name,
            until=lambda found: {*good, *answerable} <= {each.body["query_id"] for each in found},
            timeout_s=60,
        )

    statuses = {each.body["query_id"]: each.body["status"] for each in answers}
    assert {query_id: statuses.get(query_id) for query_id in good} == dict.fromkeys(good, "ok")
    assert {query_id: statuses.get(query_id) for query_id in answerable} == dict.fromkeys(answerable, "failed")
    reasons = {each.body["query_id"]: each.body["error"]["type"] for each in answers if each.body["status"] == "failed"}
    assert {each.query_id: each.reason for each in bad if each.query_id}.items() <= reasons.items()

    assert len(letters) == len(bad) + 1, "each bad record once, and the largest of all"
    expected = sorted([each.reason for each in bad] + ["too_large"])
    names = [(letter.text("rag.errors.exception.class.name") or "") for letter in letters]
    assert sorted(name.removeprefix("RecordError.") for name in names) == expected
    sent = {each.value or b"" for each in bad if b"MODEL" not in (each.value or b"")}
    assert sent <= {letter.value for letter in letters}, "raw bytes are kept"
    assert all(letter.text("rag.errors.topic") == QUERIES.name for letter in letters)
    assert all(letter.text("rag.errors.exception.message") for letter in letters)

"""The AsyncAPI document is valid, and every reference in it leads somewhere."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from carpool.kafka.acls import READS, WRITES
from schemas.codec import PASSED_ON, encode
from schemas.headers import RETRY_HEADERS
from schemas.record import Record
from schemas.topics import ANSWERS, BASES, BATCHES, DOCUMENTS, RETRIEVALS, TOPICS, VECTORS, Topic
from tests.records import a_retrieval, an_answer

SCHEMAS = Path(__file__).parents[2] / "schemas"
DOCUMENT = json.loads((SCHEMAS / "asyncapi.json").read_text())
OFFICIAL = Path(__file__).parent / "asyncapi-3.0.0.schema.json.gz"
"""The official JSON Schema of AsyncAPI 3.0.0 (Apache-2.0, see NOTICE)."""


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (found for name, found in value.items() if name == "$ref")
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from references(each)


def test_the_document_is_valid_asyncapi() -> None:
    validator = jsonschema.Draft7Validator(json.loads(gzip.decompress(OFFICIAL.read_bytes())))
    assert [
        f"{error.json_path}: {error.message}" for error in validator.iter_errors(DOCUMENT)
    ] == []
    assert not validator.is_valid(DOCUMENT | {"channels": {"a b": {"adress": "rag"}}})


def test_every_topic_is_a_channel_and_every_reference_leads_somewhere() -> None:
    addresses = {channel["address"] for channel in DOCUMENT["channels"].values()}
    assert addresses == {topic.name for topic in TOPICS}
    found = list(references(DOCUMENT))
    assert len(found) > len(TOPICS)
    for reference in found:
        if reference.startswith("#/"):
            at = DOCUMENT
            for part in reference[2:].split("/"):
                at = at[part]
        else:
            assert (SCHEMAS / reference).is_file(), reference


def test_operations_are_those_of_the_topics_that_applications_use() -> None:
    used = {
        (it["action"], it["channel"]["$ref"].removeprefix("#/channels/"))
        for it in DOCUMENT["operations"].values()
    }
    tags = {name: it["tags"][0]["name"] for name, it in DOCUMENT["channels"].items()}
    application = [
        *(("receive", topic.name) for topic in WRITES["application"]),
        *(("send", topic.name) for topic in READS["application"]),
    ]
    # Only Carpool's own commands use them, with the rights of an application.
    ours = {BATCHES.name, VECTORS.name, BASES.name}
    ours_to_read = {("send", DOCUMENTS.name)}
    application = [each for each in application if each[1] not in ours and each not in ours_to_read]
    assert used == {(action, name.replace(".", "-")) for action, name in application}
    assert {name for name, tag in tags.items() if tag == "application"} == {it for _, it in used}
    assert set(tags.values()) == {"application", "internal"}


ASKED = tuple((name, b"1") for name in (*PASSED_ON, "rag-tenant", *RETRY_HEADERS))
"""Headers of a question, those of a retry forged."""


def headers_of(topic: str) -> set[str]:
    return set(DOCUMENT["components"]["messages"][topic.replace(".", "-")]["headers"]["properties"])


@pytest.mark.parametrize(("topic", "record"), [(ANSWERS, an_answer()), (RETRIEVALS, a_retrieval())])
def test_a_result_has_the_headers_that_the_document_names(topic: Topic, record: Record) -> None:
    _, headers = encode(record, event_id="e", source="s", time_us=0, passed_on=ASKED)
    assert {name for name, _ in headers} == headers_of(topic.name)

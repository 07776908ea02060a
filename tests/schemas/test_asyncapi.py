"""The AsyncAPI document is valid, and every reference in it leads somewhere."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

from schemas.topics import TOPICS

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

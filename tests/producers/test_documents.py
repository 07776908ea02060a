"""The client puts and deletes documents: what is published, its position, and what is refused."""

from __future__ import annotations

import asyncio
import struct
import uuid
from typing import Any

import pytest

from carpool.clock import SystemClock
from carpool.kafka.admin import create_topics
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import read_topic
from producers import Client, PublishError, RecordError
from producers.documents import Put, build_document
from producers.match_answers import Place
from schemas.document import Document, DocumentKey, DocumentPassage
from schemas.document_codec import decode_document
from schemas.topics import DOCUMENTS, MIB


@pytest.fixture
def brokers(bootstrap: str) -> str:
    create_topics(KafkaSettings(bootstrap=bootstrap))
    return bootstrap


def test_a_put_and_a_delete_return_the_position_of_what_the_indexer_reads(brokers: str) -> None:
    owner, fingerprint = uuid.uuid4().hex, "0123abcd"
    given: list[Any] = [
        "one",
        {"text": "two", "title": "b", "vector": [0.6, 0.8], "embedding_model": fingerprint},
        DocumentPassage(text="three", start=4),
    ]

    async def change() -> list[Put]:
        async with Client(brokers) as client:
            return [
                await client.put("a/b.md", owner=owner, title="t", text="x", metadata={"n": 1}),
                await client.put("a/b.md", owner=owner, passages=given),
                await client.delete("a/b.md", owner=owner),
                await client.put(owner, text="a plain id"),
            ]

    puts = asyncio.run(change())
    assert puts[0].position == {puts[0].partition: puts[0].offset}
    assert [each.partition for each in puts[:3]] == [puts[0].partition] * 3
    found = {
        Put(message.source.partition, message.source.offset): decode_document(
            message.key, message.value, message.headers
        )
        for message in read_topic(
            KafkaSettings(bootstrap=brokers), SystemClock(), DOCUMENTS.name, name="test"
        )
        if owner.encode() in (message.key or b"")
    }
    assert [found[each][0] for each in puts] == [DocumentKey(owner, "a/b.md")] * 3 + [
        DocumentKey("", owner)
    ]
    first, second, gone, plain = (found[each][1] for each in puts)
    assert first == Document(title="t", text="x", metadata={"n": 1})
    assert gone is None and plain == Document(text="a plain id")
    assert second is not None and [each.text for each in second.passages] == ["one", "two", "three"]
    assert second.passages[1].vector == struct.pack("<2f", 0.6, 0.8)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no text": ({}, "needs either `text` or `passages`"),
    "both": ({"text": "a", "passages": ["b"]}, "needs either `text` or `passages`"),
    "blank": ({"text": " \n"}, "to delete it, publish its key with null"),
    "blank passage": ({"passages": ["a", " "]}, "the text of passage 1 is empty"),
    "vector alone": (
        {"passages": [{"text": "a", "vector": [1.0]}]},
        "only one of `vector` and `embedding_model`",
    ),
    "vector of words": ({"passages": [{"text": "a", "vector": ["x"]}]}, "vector: "),
    "not finite": (
        {"passages": ["a", {"text": "b", "vector": [1, float("nan")], "embedding_model": "m"}]},
        "the vector of passage 1 has a number that is not finite",
    ),
    "zero": (
        {"passages": [{"text": "a", "vector": [0.0, 0.0], "embedding_model": "m"}]},
        "the vector of passage 0 is zero: it has no direction",
    ),
    "half a number": (
        {"passages": [{"text": "a", "vector": "AAA=", "embedding_model": "m"}]},
        "the vector of passage 0 has 2 bytes, and a number of float32 has 4",
    ),
    "no passage": ({"passages": [{"title": "a"}]}, r"\$.text"),
    "many passages": ({"passages": ["a"] * 513}, "512"),
    "half a pair": ({"text": "\ud83d"}, "half of a surrogate pair"),
    "no id": ({"id": " ", "text": "a"}, "text without control characters"),
    "control characters": ({"id": "a\nb", "text": "a"}, "text without control characters"),
    "long id": ({"id": "a" * 1_025, "text": "a"}, "at most 1024"),
    "id of half a pair": ({"id": "\ud83d", "text": "a"}, "is not UTF-8"),
    "an id like a key": ({"id": '["a","b"]', "text": "a"}, "is the key of another document"),
    "no JSON": ({"text": "a", "metadata": {"at": object()}}, "cannot be written as JSON"),
    "large": ({"text": "é" * (MIB // 2)}, "at most 1,048,576 are taken: cut it into several"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_the_indexer_would_refuse_is_not_sent(case: str) -> None:
    fields, why = BAD[case]

    class Unsent(Client):
        async def _send(self, record: object) -> Place | None:
            raise AssertionError("it was sent")

    with pytest.raises(RecordError, match=why):
        asyncio.run(Unsent("k:1").put(**({"id": "a"} | fields)))


def test_a_record_of_the_largest_size_is_taken() -> None:
    key, text = DocumentKey("", "a"), "x" * (MIB - 1_000)
    assert build_document(key, Document(text=text), 0).value is not None
    with pytest.raises(RecordError, match="cut it"):
        build_document(key, Document(text=text + "x" * 1_000), 0)


@pytest.mark.parametrize(("untold", "is_known"), [(2, True), (3, False)])
def test_a_document_whose_offset_the_brokers_do_not_say_is_published_again(
    untold: int, is_known: bool
) -> None:
    sent: list[object] = []

    class Forgetful(Client):
        async def _send(self, record: object) -> Place | None:
            sent.append(record)
            return None if len(sent) <= untold else (3, 17)

    put = Forgetful("k:1").put("a", text="x")
    if is_known:
        assert asyncio.run(put).position == {3: 17}
    else:
        with pytest.raises(PublishError, match="Put it again"):
            asyncio.run(put)
    assert len(sent) == 3 and len({id(each) for each in sent}) == 1

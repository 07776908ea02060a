"""The audit of documents: each text is judged by the position that is stated with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bench.reliability.chaos import document_audit as kinds
from bench.reliability.chaos.check_answer import OTHER_CITED, OTHER_TEXT, fields_of
from bench.reliability.chaos.document_audit import DocumentAudit
from bench.reliability.chaos.document_load import OTHER_MODEL
from bench.reliability.chaos.document_truth import Acknowledged, DocumentTruth
from bench.reliability.chaos.questions import ChaosQuestion
from producers.documents import Put, build_document
from schemas.answer import Fetched, FetchedPassage, Retrieved
from schemas.codec import encode
from schemas.document import (
    Corpus,
    Document,
    DocumentKey,
    DocumentPassage,
    DocumentVectors,
    IndexedPassage,
)
from schemas.hit import Hit
from schemas.record import ClusterId, Record
from schemas.topics import ANSWERS, DOCUMENTS, RETRIEVALS, VECTORS
from tests.records import a_message, a_retrieval, an_answer

INDEX = {
    name: Hit(doc_id=name, score=0.0, cluster=ClusterId(0), title="T", text=f"{name} of the index")
    for name in ("a", "b", "other")
}
ASKED = ChaosQuestion(id="asked", text="alpha first second index", is_live=True)
FETCHED = ChaosQuestion(id="fetched", text="", is_live=True, fetch=("a",), bound={0: 1})


def a_revision(*texts: str, **bad: Any) -> Document:
    passages = [{"text": text, **bad} for text in texts]
    return Document(
        title="T", passages=msgspec.convert(tuple(passages), tuple[DocumentPassage, ...])
    )


class Corpora:
    """Documents of partition 0, at offsets from 0, and what services made of them."""

    def __init__(self, *log: tuple[str, Document | None]) -> None:
        self.truth = DocumentTruth(INDEX)
        self.audit = DocumentAudit([ASKED, FETCHED], self.truth)
        self.changed = list[Acknowledged]()
        for offset, (name, document) in enumerate(log):
            key = DocumentKey("", name)
            record = build_document(key, document, 0)
            self.audit.take(
                a_message(
                    DOCUMENTS.name,
                    offset,
                    key=key.encode(),
                    value=record.value,
                    headers=record.headers,
                )
            )
            self.changed.append(Acknowledged(key, Put(0, offset), document is None))

    def write(self, topic: str, record: Record) -> None:
        value, headers = encode(record, event_id="e", source="t", time_us=0)
        self.audit.take(a_message(topic, value=value, headers=headers))

    def index(self, offset: int, *texts: str, **fields: Any) -> None:
        passages = tuple(IndexedPassage(text=text) for text in texts)
        self.write(VECTORS.name, DocumentVectors(offset=offset, passages=passages, **fields))

    def found(self, position: int, *hits: tuple[str, str]) -> None:
        """A retrieval at a position: ids and texts."""
        made = [
            Hit(doc_id=id, score=1.0, cluster=ClusterId(0), title="T", text=text)
            for id, text in hits
        ]
        self.write(RETRIEVALS.name, a_retrieval(hits=made, corpus=at(position)))

    def answered(self, position: int, ids: Sequence[str], **fields: Any) -> None:
        """An answer with these passages; its text is of those that are right."""
        there = self.truth.at({0: position})
        right = [there[id] for id in ids if id in there]
        vector = self.truth.embedded(ASKED.text)
        scores = [*self.truth.scores([row for _, row in right], vector).tolist(), 0.5, 0.5]
        hits = tuple(hit for hit, _ in right)
        own = fields_of(msgspec.structs.replace(ASKED, hits=hits).end)
        own["retrieved"] = tuple(
            Retrieved(id=id, score=score) for id, score in zip(ids, scores, strict=False)
        )
        self.write(ANSWERS.name, an_answer("asked", corpus=at(position), **own | fields))

    def fetched(self, position: int, *told: str) -> None:
        passages = tuple(FetchedPassage(n=n, title="T", text=t) for n, t in enumerate(told, 1))
        found = (Fetched(id="a", count=len(told), passages=passages),)
        self.write(ANSWERS.name, an_answer("fetched", fetched=found, corpus=at(position)))

    def wrong(self) -> dict[str, int]:
        found = self.audit.result(self.changed).wrong
        return {what: len(places) for what, places in found.items() if places}


def at(position: int) -> Corpus:
    return Corpus(base="b", position={0: position} if position >= 0 else {})


LOG = (
    ("a", a_revision("a first", "a more")),
    ("b", a_revision("b first")),
    ("a", None),
    ("b", a_revision("bad", **{**OTHER_MODEL, "vector": "AACAPw=="})),
)
OLD = {kinds.OLD_TEXT: 1}


@pytest.mark.parametrize(
    ("position", "hits", "wrong"),
    [
        (-1, [("a", "a of the index"), ("b", "b of the index")], {}),
        (0, [("a#1", "a first"), ("a#2", "a more"), ("b", "b of the index")], {}),
        (0, [("a", "a of the index")], OLD),
        (-1, [("a#1", "a first")], OLD),
        (1, [("b", "b first"), ("other", "other of the index")], {}),
        (1, [("b", "b of the index")], OLD),
        (2, [("a#1", "a first")], OLD),
        (2, [("b", "b first")], {}),
        (3, [("b", "b first")], OLD),
        (3, [("b", "bad")], OLD),
        (1, [("b", "b first"), ("b", "b first")], {kinds.TWICE_FOUND: 1}),
    ],
)
def test_each_text_of_a_retrieval_is_of_the_newest_revision_at_its_position(
    position: int, hits: list[tuple[str, str]], wrong: dict[str, int]
) -> None:
    corpora = Corpora(*LOG)
    left = corpora.wrong()
    corpora.found(position, *hits)
    assert corpora.wrong() == left | wrong


@pytest.mark.parametrize(
    ("position", "ids", "wrong"),
    [
        (1, ["a", "b", "other"], set()),
        (2, ["a", "other"], set()),
        (2, ["a", "b"], {kinds.OLD_TEXT}),
        (1, ["b", "other"], {kinds.NOT_NEAREST}),
        (1, ["other", "b", "a"], {kinds.NOT_NEAREST}),
    ],
)
def test_an_answer_has_the_nearest_passages_at_its_position(
    position: int, ids: list[str], wrong: set[str]
) -> None:
    log = ("a", a_revision("alpha first")), ("a", a_revision("alpha second")), ("b", None)
    corpora = Corpora(*log)
    corpora.answered(position, ids)
    assert corpora.wrong().keys() - {kinds.LOST, kinds.OTHER_VECTORS} == wrong


def test_an_answer_quotes_and_cites_the_texts_at_its_position() -> None:
    corpora = Corpora(("a", a_revision("alpha first")), ("a", a_revision("alpha second")))
    first = msgspec.structs.replace(ASKED, hits=(corpora.truth.at({0: 0})["a"][0],))
    other = fields_of(first.end)
    for fields in ({"quotes": other["quotes"]}, {"answer": other["answer"]}):
        corpora.answered(1, ["a", "b", "other"], **fields)
    assert corpora.wrong().items() >= {OTHER_CITED: 1, OTHER_TEXT: 1}.items()


@pytest.mark.parametrize(
    ("position", "told", "wrong"),
    [
        (1, ["second", "more"], {kinds.LOST}),
        (1, [], {kinds.LOST}),
        (2, [], set()),
        (1, ["first"], {kinds.LOST, kinds.OLD_TEXT}),
        (1, ["second"], {kinds.LOST, kinds.OLD_TEXT}),
        (2, ["second", "more"], {kinds.LOST, kinds.OLD_TEXT}),
        (0, ["first"], {kinds.LOST, kinds.BEFORE_BOUND}),
    ],
)
def test_what_is_fetched_is_the_revision_at_the_position_or_later_and_after_its_bound(
    position: int, told: list[str], wrong: set[str]
) -> None:
    log = ("a", a_revision("first")), ("a", a_revision("second", "more")), ("a", None)
    corpora = Corpora(*log)
    corpora.fetched(position, *told)
    assert corpora.wrong().keys() - {kinds.OTHER_VECTORS} == wrong


def test_each_change_is_in_the_log_and_has_one_record_of_vectors() -> None:
    corpora = Corpora(*LOG)
    corpora.changed[1:] = [Acknowledged(DocumentKey("", "b"), Put(0, 9), False)]
    corpora.index(0, "a first", "a more")
    corpora.index(1, "b zero")
    corpora.index(2, deleted=True)
    corpora.index(2, deleted=True)
    corpora.index(1, "b first")
    assert corpora.wrong() == {kinds.LOST: 3, kinds.OTHER_VECTORS: 2, kinds.TWICE_INDEXED: 2}
    counts = Corpora(*LOG).audit.result([]).counts
    assert (counts["changes"], counts["deleted"], counts["refused"]) == (4, 1, 1)

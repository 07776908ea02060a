"""The audit of documents: each text is judged by the position that is stated with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bench.reliability.chaos import document_audit as kinds
from bench.reliability.chaos.check_answer import OTHER_CITED, fields_of
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
from schemas.topics import DOCUMENTS, VECTORS
from tests.records import a_message, a_retrieval, an_answer

INDEX = {
    name: Hit(doc_id=name, score=0.0, cluster=ClusterId(0), title="T", text=f"{name} of the index")
    for name in ("a", "b", "other")
}
QUESTION = ChaosQuestion(id="q", text="alpha first second index", is_live=True)


def texts(*given: str) -> Document:
    return Document(title="T", passages=tuple(DocumentPassage(text=text) for text in given))


class Corpora:
    """Documents a and b of partition 0, at offsets from 0, and what the services make of them."""

    def __init__(self, *log: tuple[str, Document | None]) -> None:
        self.truth = DocumentTruth(INDEX)
        self.audit = DocumentAudit(self.truth)
        self.changed = list[Acknowledged]()
        for offset, (name, document) in enumerate(log):
            key = DocumentKey("", name)
            record = build_document(key, document, 0)
            headers = record.headers
            self.audit.take(
                a_message(
                    DOCUMENTS.name, offset, key=key.encode(), value=record.value, headers=headers
                )
            )
            self.changed.append(Acknowledged(key, Put(0, offset), document is None))
        self.made = 0

    def index(self, offset: int, *passages: str, **fields: Any) -> None:
        record = DocumentVectors(
            offset=offset, passages=tuple(IndexedPassage(text=text) for text in passages), **fields
        )
        self.write(record)

    def write(self, record: Record) -> None:
        value, headers = encode(record, event_id="e", source="t", time_us=0)
        self.audit.take(a_message(VECTORS.name, self.made, value=value, headers=headers))
        self.made += 1

    def found(self, position: int, *hits: tuple[str, str]) -> None:
        """A retrieval at a position: ids and texts."""
        corpus = Corpus(base="b", position={0: position} if position >= 0 else {})
        made = [
            Hit(doc_id=id, score=1.0, cluster=ClusterId(0), title="T", text=text)
            for id, text in hits
        ]
        self.audit.retrieval("q/0/0", a_retrieval(hits=made, corpus=corpus))

    def answered(self, position: int, ids: Sequence[str], **fields: Any) -> list[str]:
        """What an answer with these passages has wrong; its text is of those that are right."""
        there = self.truth.at({0: position})
        hits = tuple(there[id][0] for id in ids if id in there)
        rows = [there[id][1] for id in ids if id in there]
        scores = self.truth.scores(rows, self.truth.embedded(QUESTION.text)).tolist()
        scores += [0.5] * (len(ids) - len(rows))
        retrieved = [Retrieved(id=id, score=score) for id, score in zip(ids, scores, strict=True)]
        own = fields_of(msgspec.structs.replace(QUESTION, hits=hits).end)
        own |= {"retrieved": tuple(retrieved), "corpus": Corpus(base="b", position={0: position})}
        return list(self.audit.of_answer(QUESTION, an_answer("q", **own | fields)))

    def fetched(self, position: int, name: str, *told: str) -> list[str]:
        passages = tuple(FetchedPassage(n=n, title="T", text=t) for n, t in enumerate(told, 1))
        answer = an_answer(
            "q",
            fetched=(Fetched(id=name, count=len(told), passages=passages),),
            corpus=Corpus(base="b", position={0: position}),
        )
        question = msgspec.structs.replace(QUESTION, fetch=(name,), bound={0: 1})
        return list(self.audit.of_answer(question, answer))

    def wrong(self) -> Counter[str]:
        found = {what: len(places) for what, places in self.audit.wrong(self.changed).items()}
        return Counter({what: count for what, count in found.items() if count})


REFUSED = Document(
    passages=tuple(
        msgspec.convert([{"text": "bad", **OTHER_MODEL, "vector": b"1"}], list[DocumentPassage])
    )
)
LOG = (("a", texts("a first", "a more")), ("b", texts("b first")), ("a", None), ("b", REFUSED))
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
    corpora.found(position, *hits)
    left = Corpora(*LOG).wrong()
    assert corpora.wrong() - left == wrong


def test_an_answer_has_the_nearest_passages_at_its_position_and_cites_their_texts() -> None:
    corpora = Corpora(("a", texts("alpha first")), ("a", texts("alpha second")), ("b", None))
    assert corpora.answered(1, ["a", "b", "other"]) == []
    assert corpora.answered(2, ["a", "other"]) == []
    assert corpora.answered(2, ["a", "b"]) == [kinds.OLD_TEXT]
    assert corpora.answered(1, ["b", "other"]) == [kinds.NOT_NEAREST]
    first = msgspec.structs.replace(QUESTION, hits=(corpora.truth.at({0: 0})["a"][0],))
    other = fields_of(first.end)["quotes"]
    assert corpora.answered(1, ["a", "b", "other"], quotes=other) == [OTHER_CITED]


def test_what_is_fetched_is_the_revision_at_the_position_or_later_and_after_its_bound() -> None:
    corpora = Corpora(("a", texts("first")), ("a", texts("second", "more")), ("a", None))
    assert corpora.fetched(1, "a", "second", "more") == []
    assert corpora.fetched(1, "a") == [], "it was deleted meanwhile"
    assert corpora.fetched(1, "a", "first") == [kinds.OLD_TEXT]
    assert corpora.fetched(1, "a", "second") == [kinds.OLD_TEXT]
    assert corpora.fetched(2, "a", "second", "more") == [kinds.OLD_TEXT]
    assert corpora.fetched(0, "a", "first") == [kinds.BEFORE_BOUND]
    assert corpora.wrong()[kinds.LOST_DOCUMENTS] == 1
    assert corpora.fetched(2, "a") == []
    assert corpora.wrong()[kinds.LOST_DOCUMENTS] == 0


def test_each_change_is_in_the_log_and_has_one_record_of_vectors() -> None:
    corpora = Corpora(*LOG)
    corpora.changed[1:] = [Acknowledged(DocumentKey("", "b"), Put(0, 9), False)]
    corpora.index(0, "a first", "a more")
    corpora.index(1, "b zero")
    corpora.index(2, deleted=True)
    corpora.index(2, deleted=True)
    corpora.index(1, "b first")
    assert corpora.wrong() == {
        kinds.LOST_CHANGES: 1,
        kinds.LOST_DOCUMENTS: 2,
        kinds.NO_VECTORS: 1,
        kinds.OTHER_VECTORS: 1,
        kinds.TWICE_INDEXED: 2,
    }
    counts = corpora.audit.counts()
    assert counts["vectors that the fold passes over"] == 1
    assert (counts["changes"], counts["deleted"], counts["refused"]) == (4, 1, 1)

"""Judges every text by the position that is stated with it, and the logs of the corpus. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from bench.reliability.chaos.check_answer import TOP_K, wrong_in
from bench.reliability.chaos.document_truth import Acknowledged, DocumentTruth
from bench.reliability.chaos.questions import ChaosQuestion
from carpool.corpus.bases import Bases, is_announcement
from carpool.kafka.records import Message
from schemas import topics
from schemas.answer import Answer
from schemas.codec import decode
from schemas.document import Base, Corpus, DocumentVectors, Position
from schemas.hit import Hit
from schemas.retrieval import Retrieval
from searcher.bounds import is_reached

OLD_TEXT = "a text that is not of the revision at its position"
NOT_NEAREST = "other passages than the nearest at its position"
BEFORE_BOUND = "an answer from before the change that it was to come after"
LOST_DOCUMENTS = "documents that are not as their last revision"
LOST_CHANGES = "changes that the log of documents lacks"
NO_VECTORS = "documents without their record of vectors"
OTHER_VECTORS = "vectors of another revision"
TWICE_FOUND, TWICE_INDEXED = "twice: a passage in a retrieval", f"twice: {topics.VECTORS.name}"
CORPUS_TOPICS = (
    topics.DOCUMENTS.name,
    topics.VECTORS.name,
    topics.BASES.name,
    topics.DOCUMENTS_DEAD.name,
)
SCORE_SLACK = 2e-3
"""A vector of float16 changes a score by so much."""
RANK_SLACK = 0.02
"""Codes may miss a passage whose score is that near to the last one's."""


class _Found(NamedTuple):
    """A final retrieval: where its question is, and what it has found."""

    place: str
    corpus: Corpus | None
    hits: tuple[tuple[Hit, ...], ...]


class DocumentAudit:
    """Takes records in the order of each partition, then judges."""

    def __init__(self, truth: DocumentTruth) -> None:
        self._truth = truth
        self._vectors: dict[int, list[DocumentVectors]] = {}
        self._bases, self._searched = Bases(), set[str]()
        self._found: list[_Found] = []
        self._right_at_end: set[str] = set()
        self._counts = Counter[str]()

    def take(self, record: Message) -> None:
        """Takes a record of one of `CORPUS_TOPICS`."""
        topic = record.source.topic
        if topic == topics.DOCUMENTS.name:
            self._truth.take(record)
        elif topic == topics.VECTORS.name:
            made = decode(DocumentVectors, record.value, record.headers)
            self._vectors.setdefault(record.source.partition, []).append(made)
        elif topic == topics.DOCUMENTS_DEAD.name:
            self._counts["letters"] += 1
        elif not is_announcement(record):
            self._counts["saves asked for"] += 1
        else:
            base = decode(Base, record.value, record.headers)
            is_next = self._bases.announced(base)
            self._counts["bases saved" if is_next else "bases that came too late"] += 1

    def retrieval(self, place: str, found: Retrieval) -> None:
        """Takes a final retrieval."""
        self._found.append(_Found(place, found.corpus, (found.hits, *found.other_hits)))

    def of_answer(self, question: ChaosQuestion, answer: Answer) -> Iterator[str]:
        """Yields what the `ok` answer of a question about documents has wrong."""
        position = _position(answer.corpus)
        self._counts["answers"] += 1
        if not is_reached(question.bound, position):
            yield BEFORE_BOUND
        if question.fetch:
            if not self._is_right_fetch(question, answer, position):
                yield OLD_TEXT
            return
        there = self._truth.at(position)
        places = [there.get(each.id) for each in answer.retrieved]
        found = [place for place in places if place is not None]
        if len(found) < len(places):
            yield OLD_TEXT
            return
        if not self._are_nearest(question, answer, [row for _, row in there.values()], found):
            yield NOT_NEAREST
        hits = tuple(hit for hit, _ in found)
        if what := wrong_in(answer, msgspec.structs.replace(question, hits=hits).end):
            yield what

    def _are_nearest(
        self,
        question: ChaosQuestion,
        answer: Answer,
        rows: Sequence[int],
        found: Sequence[tuple[Hit, int]],
    ) -> bool:
        if question.vector is None:
            vector = self._truth.embedded(question.text)
        else:
            vector = np.frombuffer(question.vector, "<f4")
        own = self._truth.scores([row for _, row in found], vector)
        told = np.array([each.score for each in answer.retrieved])
        best = np.sort(self._truth.scores(rows, vector))[::-1][: len(found)]
        return bool(
            len(found) == min(TOP_K, len(rows))
            and np.all(np.abs(own - told) < SCORE_SLACK)
            and np.all(told >= best - RANK_SLACK)
        )

    def _is_right_fetch(self, question: ChaosQuestion, answer: Answer, position: Position) -> bool:
        """What is fetched may be newer than the position."""
        if len(answer.fetched) != len(question.fetch):
            return False
        for name, fetched in zip(question.fetch, answer.fetched, strict=True):
            told = [(each.title, each.text) for each in fetched.passages]
            may_be = [
                [(hit.title, hit.text) for hit in each.hits]
                for each in self._truth.since(name, position)
            ]
            if fetched.count != len(told) or told not in may_be:
                return False
            if is_reached(self._truth.ends, position):
                self._right_at_end.add(name)
        return True

    def wrong(self, changed: Iterable[Acknowledged]) -> dict[str, list[str]]:
        """Returns what is wrong in the logs and in retrievals; after the answers were judged.

        `changed`: what brokers have acknowledged.
        """
        wrong: dict[str, list[str]] = {TWICE_FOUND: [], OLD_TEXT: []}
        for each in self._found:
            for what in self._wrong_texts(each):
                wrong[what].append(each.place)
        wrong[LOST_CHANGES], names = [], set[str]()
        for key, put, is_delete in changed:
            names.add(key.shown)
            name, made = self._truth.places.get((put.partition, put.offset), ("", None))
            if made is None or name != key.shown or (is_delete and made.hits):
                wrong[LOST_CHANGES].append(f"{key.shown} at {put.partition}/{put.offset}")
        wrong[LOST_DOCUMENTS] = sorted(names - self._right_at_end)
        return wrong | self._wrong_vectors()

    def _wrong_texts(self, found: _Found) -> Iterator[str]:
        there = self._truth.at(_position(found.corpus))
        self._searched |= set() if found.corpus is None else {found.corpus.base}
        self._counts["texts"] += sum(map(len, found.hits))
        for hits in found.hits:
            if len({hit.doc_id for hit in hits}) < len(hits):
                yield TWICE_FOUND
            for hit in hits:
                own, _ = there.get(hit.doc_id, (None, 0))
                if own is None or (own.title, own.text) != (hit.title, hit.text):
                    yield OLD_TEXT
                    break

    def _wrong_vectors(self) -> dict[str, list[str]]:
        wrong: dict[str, list[str]] = {NO_VECTORS: [], OTHER_VECTORS: [], TWICE_INDEXED: []}
        missing = dict(self._truth.places)
        for partition, records in self._vectors.items():
            highest = -1
            for each in records:
                place = f"{topics.DOCUMENTS.name}/{partition}/{each.offset}"
                self._counts["vectors that the fold passes over"] += each.offset < highest
                highest = max(highest, each.offset)
                if (own := missing.pop((partition, each.offset), None)) is None:
                    wrong[TWICE_INDEXED].append(place)
                elif [hit.text for hit in own[1].hits] != [one.text for one in each.passages] or (
                    own[1].is_refused != (each.refused is not None)
                ):
                    wrong[OTHER_VECTORS].append(place)
        wrong[NO_VECTORS] = [f"{topics.DOCUMENTS.name}/{p}/{offset}" for p, offset in missing]
        return wrong

    def counts(self) -> dict[str, int]:
        """Returns what there was."""
        made = [revision for _, revision in self._truth.places.values()]
        return {
            **self._counts,
            "documents": len({name for name, _ in self._truth.places.values()}),
            "changes": len(made),
            "deleted": sum(not each.hits and not each.is_refused for each in made),
            "refused": sum(each.is_refused for each in made),
            "vectors": sum(map(len, self._vectors.values())),
            "bases searched": len(self._searched),
            "as their last revision": len(self._right_at_end),
        }


def _position(corpus: Corpus | None) -> Position:
    return {} if corpus is None else corpus.position

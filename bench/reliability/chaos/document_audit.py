"""Judges every text by the position that is stated with it, and the logs of the corpus. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from bench.reliability.chaos.check_answer import OTHER_CITED, OTHER_TEXT, TOP_K, wrong_in
from bench.reliability.chaos.document_truth import Acknowledged, DocumentTruth, position_of
from bench.reliability.chaos.questions import ChaosQuestion
from carpool.corpus.bases import Bases, is_announcement
from carpool.kafka.records import Message
from schemas import topics
from schemas.answer import Answer
from schemas.codec import decode, decode_retrieval
from schemas.document import DocumentVectors
from schemas.hit import Hit
from schemas.retrieval import Retrieval
from searcher.bounds import is_reached

OLD_TEXT = "a text that is not of the revision at its position"
NOT_NEAREST = "other passages than the nearest at its position"
BEFORE_BOUND = "an answer from before the change that it was to come after"
LOST = "changes that the log lacks, and documents that are not as their last revision"
OTHER_VECTORS = "changes without their vectors"
TWICE_FOUND, TWICE_INDEXED = "twice: a passage in a retrieval", f"twice: {topics.VECTORS.name}"
SCORE_SLACK = 2e-3
"""A vector of float16 changes a score by so much."""
RANK_SLACK = 0.02
"""Codes may miss a passage whose score is that near to the last one's."""


class DocumentResult(msgspec.Struct, frozen=True, kw_only=True):
    """What there was, by kind, and what was wrong: input records, and places of documents."""

    counts: dict[str, int]
    wrong: dict[str, list[str]]


class DocumentAudit:
    """Takes records of all topics, those of a partition in their order, and then judges them."""

    def __init__(self, questions: Iterable[ChaosQuestion], truth: DocumentTruth) -> None:
        self._questions = {each.id: each for each in questions if each.is_live}
        self._truth = truth
        self._retrievals: list[Retrieval] = []
        self._answers: list[Answer] = []
        self._vectors: dict[int, list[DocumentVectors]] = {}
        self._bases = Bases()
        self._right_at_end: set[str] = set()
        self._counts = Counter[str]()

    def take(self, record: Message) -> None:
        """Takes a record."""
        source, value, headers = record.source, record.value, record.headers
        if source.topic == topics.DOCUMENTS.name:
            self._truth.take(record)
        elif source.topic == topics.VECTORS.name:
            made = decode(DocumentVectors, value, headers)
            self._vectors.setdefault(source.partition, []).append(made)
        elif source.topic == topics.BASES.name and is_announcement(record):
            is_next = self._bases.hear(record)
            self._counts["bases saved" if is_next else "bases that came too late"] += 1
        elif source.topic in (topics.RETRIEVALS.name, topics.RETRIEVALS_BATCH.name):
            found = decode_retrieval(value, headers)
            self._retrievals += [found] if isinstance(found, Retrieval) else []
        elif source.topic == topics.ANSWERS.name:
            self._answers.append(decode(Answer, value, headers))
        self._counts["letters"] += source.topic == topics.DOCUMENTS_DEAD.name

    def result(self, changed: Sequence[Acknowledged]) -> DocumentResult:
        """Returns the counts. `changed`: what brokers have acknowledged."""
        wrong: dict[str, list[str]] = {
            **{what: [] for what in (OLD_TEXT, NOT_NEAREST, BEFORE_BOUND, OTHER_TEXT, OTHER_CITED)},
            **{what: [] for what in (TWICE_FOUND, TWICE_INDEXED, OTHER_VECTORS)},
        }
        for answer in self._answers:
            question = self._questions.get(answer.query_id)
            if question is not None and answer.status == "ok":
                for what in self._wrong_answer(question, answer):
                    wrong[what].append(answer.query_id)
        for found in self._retrievals:
            for what in self._wrong_retrieval(found):
                wrong[what].append(found.query.query_id)
        for what, place in self._wrong_vectors():
            wrong[what].append(place)
        wrong[LOST] = [each.key.shown for each in changed if not self._truth.has(each)]
        wrong[LOST] += sorted({each.key.shown for each in changed} - self._right_at_end)
        return DocumentResult(counts=self._all_counts(), wrong=wrong)

    def _wrong_answer(self, question: ChaosQuestion, answer: Answer) -> Iterator[str]:
        """Yields what the `ok` answer of a question about documents has wrong."""
        position = position_of(answer.corpus)
        if not is_reached(question.bound, position):
            yield BEFORE_BOUND
        if question.fetch:
            if not self._is_right_fetch(question, answer):
                yield OLD_TEXT
            return
        there = self._truth.at(position)
        found = [there[each.id] for each in answer.retrieved if each.id in there]
        if len(found) < len(answer.retrieved):
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
        given = question.vector
        vector = (
            self._truth.embedded(question.text) if given is None else np.frombuffer(given, "<f4")
        )
        own = self._truth.scores([row for _, row in found], vector)
        told = np.array([each.score for each in answer.retrieved])
        best = np.sort(self._truth.scores(rows, vector))[::-1][: len(found)]
        return bool(
            len(found) == min(TOP_K, len(rows))
            and np.all(np.abs(own - told) < SCORE_SLACK)
            and np.all(told >= best - RANK_SLACK)
        )

    def _is_right_fetch(self, question: ChaosQuestion, answer: Answer) -> bool:
        """What is fetched may be newer than the position."""
        position = position_of(answer.corpus)
        for name, fetched in zip(question.fetch, answer.fetched, strict=True):
            told = [(each.title, each.text) for each in fetched.passages]
            revisions = self._truth.since(name, position)
            if told not in [[(hit.title, hit.text) for hit in each.hits] for each in revisions]:
                return False
            if is_reached(self._truth.ends, position):
                self._right_at_end.add(name)
        return True

    def _wrong_retrieval(self, found: Retrieval) -> Iterator[str]:
        there = self._truth.at(position_of(found.corpus))
        for hits in (found.hits, *found.other_hits):
            self._counts["texts"] += len(hits)
            if len({hit.doc_id for hit in hits}) < len(hits):
                yield TWICE_FOUND
            right = [there[hit.doc_id][0] for hit in hits if hit.doc_id in there]
            if [(hit.title, hit.text) for hit in right] != [(hit.title, hit.text) for hit in hits]:
                yield OLD_TEXT

    def _wrong_vectors(self) -> Iterator[tuple[str, str]]:
        missing = dict(self._truth.places)
        for partition, records in self._vectors.items():
            highest = -1
            for each in records:
                self._counts["vectors that the fold passes over"] += each.offset < highest
                highest = max(highest, each.offset)
                own = missing.pop((partition, each.offset), None)
                if own is None:
                    yield TWICE_INDEXED, f"{partition}/{each.offset}"
                elif own[1].is_refused != (each.refused is not None) or (
                    [hit.text for hit in own[1].hits] != [one.text for one in each.passages]
                ):
                    yield OTHER_VECTORS, f"{partition}/{each.offset}"
        for partition, offset in missing:
            yield OTHER_VECTORS, f"{partition}/{offset}"

    def _all_counts(self) -> dict[str, int]:
        made = [revision for _, revision in self._truth.places.values()]
        asked = [each for each in self._answers if each.query_id in self._questions]
        return {
            **self._counts,
            "documents": len({name for name, _ in self._truth.places.values()}),
            "as their last revision": len(self._right_at_end),
            "changes": len(made),
            "deleted": sum(not each.hits and not each.is_refused for each in made),
            "refused": sum(each.is_refused for each in made),
            "vectors": sum(map(len, self._vectors.values())),
            "answers": len(asked),
            "stale": sum(map(is_stale, asked)),
            "bases searched": len({each.corpus.base for each in self._answers if each.corpus}),
        }


def is_stale(answer: Answer) -> bool:
    """Whether a query ended because the documents that it waited for came too late."""
    return answer.error is not None and answer.error.type == "stale"

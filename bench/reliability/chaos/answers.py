"""Judges the answers of a run: each is that of its question, and fails only for a cause. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bench.reliability.chaos.check_answer import (
    OTHER_CITED,
    OTHER_TEXT,
    PROGRAMS,
    Nearest,
    wrong_in,
    wrong_in_workflow,
)
from bench.reliability.chaos.document_audit import is_stale
from bench.reliability.chaos.questions import ALWAYS, ChaosQuestion
from schemas.answer import Answer
from schemas.headers import DEADLINE_HEADER, REPLAYED_FROM_HEADER, TENANT_HEADER
from schemas.hit import Hit
from schemas.record import Headers, header

FAILED = "failed without a cause in the load"
OTHER_PASSAGES = "other passages than without faults"
OTHER_TENANT = "an answer to another tenant"
AGAIN = "generated again"
KINDS = (FAILED, OTHER_PASSAGES, OTHER_TEXT, OTHER_CITED, OTHER_TENANT, AGAIN)


class PublishedQuestion(NamedTuple):
    """A question as it was published, at `at_ms`, epoch milliseconds."""

    query_id: str
    at_ms: int
    headers: Headers

    @property
    def letter(self) -> bytes | None:
        """The dead letter that it replays."""
        return header(self.headers, REPLAYED_FROM_HEADER)


class AnswerAudit:
    """Judges answers by the questions of the load and all passages, both by id."""

    def __init__(self, questions: Mapping[str, ChaosQuestion], corpus: Mapping[str, Hit]) -> None:
        self._questions, self._corpus = questions, corpus
        self._nearest = Nearest(corpus)

    def wrong(
        self,
        answers: Mapping[str, tuple[Answer, int]],
        published: Mapping[str, PublishedQuestion],
        versions: Mapping[str, int],
    ) -> dict[str, list[str]]:
        """Returns the input records with a wrong answer, by what is wrong.

        All by input record. `answers`: with the time of each, epoch milliseconds. `versions`: of
        the programs of workflows.
        """
        generated, tenants = set[str](), dict[str, bytes | None]()
        first = {each.query_id: at for at, (each, _) in answers.items() if not each.replayed}
        wrong: dict[str, list[str]] = {what: [] for what in KINDS}
        for record, (answer, written_ms) in answers.items():
            if (asked := published.get(record)) is None:
                continue
            question, is_ok = self._questions[answer.query_id], answer.status == "ok"
            if not is_ok and not _may_fail(asked, question, answer, written_ms):
                wrong[FAILED].append(record)
            if is_ok or answer.answer is not None:
                # An id that is asked again may get an answer of an earlier version.
                made = first.get(answer.query_id, record) if answer.replayed else record
                for what in self._wrong_fields(question, answer, versions.get(made, 0)):
                    wrong[what].append(record)
            if is_ok and answer.generation_id is not None:
                tenant = header(asked.headers, TENANT_HEADER)
                if tenants.setdefault(answer.generation_id, tenant) != tenant:
                    wrong[OTHER_TENANT].append(record)
            if is_ok and not answer.replayed:
                if answer.query_id in generated:
                    wrong[AGAIN].append(record)
                generated.add(answer.query_id)
        return wrong

    def _wrong_fields(self, question: ChaosQuestion, answer: Answer, version: int) -> Iterator[str]:
        """Yields what kinds of fields an answer with a text has wrong."""
        what: str | None = OTHER_TEXT
        if question.is_live:
            return  # another audit does this
        if question.workflow is None:
            found = [each.id for each in answer.retrieved]
            if answer.status == "ok" and found != [hit.doc_id for hit in question.hits]:
                yield OTHER_PASSAGES
            what = wrong_in(answer, question.end)
        else:
            if not self._nearest.are_right(answer):
                yield OTHER_PASSAGES
            if program := PROGRAMS.get((question.workflow, version)):
                what = wrong_in_workflow(answer, program, question.text, self._corpus)
        if what is not None:
            yield what


def _may_fail(
    asked: PublishedQuestion, question: ChaosQuestion, answer: Answer, written_ms: int
) -> bool:
    status = answer.status
    if is_stale(answer):
        return bool(question.bound)
    if status == "cancelled":
        return question.is_withdrawn
    if status == "expired":
        deadline_ms = header(asked.headers, DEADLINE_HEADER)
        return deadline_ms is not None and written_ms >= int(deadline_ms)
    return question.fails == ALWAYS and asked.letter is None

"""The audit of workflows: a step counts once, and an answer is that of its program."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from bench.reliability.chaos.audit import OTHER_TEXT, TopicAudit
from bench.reliability.chaos.questions import ChaosQuestion
from bench.reliability.chaos.workflows import PROGRAMS, written, wrong_in
from carpool.testing.workflow import run
from carpool.workflow.steps import Found, Generate, Retrieve
from schemas.answer import Answer, Retrieved, StepDone
from schemas.codec import encode
from schemas.headers import ORIGIN_HEADER
from schemas.query import Journal, Query
from schemas.topics import ANSWERS, QUERIES, RETRIES, RETRIEVALS
from schemas.workflow import StepResult
from tests.records import a_message, a_query, a_retrieval, a_source, an_answer, some_hits

QUESTION = "why?"
CORPUS = {hit.doc_id: hit for hit in some_hits(3)}


def right(program: str) -> Answer:
    """The answer of a run of a program that finds all passages with each search."""
    told: list[StepDone] = []

    def result(step: Retrieve | Generate) -> Found | str:
        if isinstance(step, Retrieve):
            found = Found(list(CORPUS.values())[: step.top_k])
            ids = tuple(hit.doc_id for hit in found)
            told.append(StepDone(n=1, kind="retrieve", text=step.text, doc_ids=ids))
            return found
        told.append(StepDone(n=1, kind="generate", text=written(step)))
        return told[-1].text

    end = run(PROGRAMS[program, 1], result, question=QUESTION).answer
    retrieved = tuple(Retrieved(id=hit.doc_id, score=1.0) for hit in end.passages)
    return an_answer("w", answer=written(end), retrieved=retrieved, steps=tuple(told))


@pytest.mark.parametrize(("program", "version"), PROGRAMS)
def test_the_answer_of_each_program_is_right_and_any_other_is_wrong(
    program: str, version: int
) -> None:
    answer = right(program)
    assert wrong_in(answer, program, QUESTION, CORPUS) is None
    first, *others = answer.steps
    other_text = msgspec.structs.replace(first, text="another text")
    for wrong in (
        {"answer": "another text"},
        {"retrieved": answer.retrieved[1:]},
        {"steps": (other_text, *others)},
        {"steps": answer.steps[:-1]},
        {"steps": (*answer.steps, first)},
    ):
        found = wrong_in(msgspec.structs.replace(answer, **wrong), program, QUESTION, CORPUS)
        assert found is not None, wrong


class Topics:
    """The records of one workflow, `hyde`, and their audit."""

    def __init__(self) -> None:
        question = ChaosQuestion(id="w", text=QUESTION, workflow="hyde")
        self.audit = TopicAudit(0, [question], CORPUS)
        self.offsets: Counter[str] = Counter()
        self.write(QUERIES.name, a_query("w"))
        self.write(RETRIEVALS.name, a_retrieval(self.step(0), source=a_source(0)))
        self.search()
        self.write(RETRIEVALS.name, a_retrieval(self.step(1), source=a_source(0)))

    def step(self, steps: int) -> Query:
        done = tuple((StepResult(digest="d", text="t"),) for _ in range(steps))
        journal = Journal(
            root=a_query("w"), program="hyde", version=1, digest="d", rounds=done, began_us=0
        )
        return a_query("w", journal=journal)

    def search(self) -> None:
        self.write(RETRIES.name, self.step(1), (ORIGIN_HEADER, b"rag.queries.v1/0/0/0"))

    def answer(self, **fields: object) -> None:
        source = a_source(0, timestamp_ms=1_000)
        self.write(ANSWERS.name, msgspec.structs.replace(right("hyde"), source=source, **fields))

    def write(self, topic: str, record: object, *headers: tuple[str, bytes]) -> None:
        value, own = encode(record, event_id="e", source="t", time_us=0)  # type: ignore[arg-type]
        place = self.offsets[topic]
        self.offsets[topic] += 1
        message = a_message(
            topic, place, key=b"w", value=value, headers=own + headers, timestamp_ms=3_000
        )
        self.audit.take(message)

    def wrong(self, *deleted_ms: int) -> dict[str, int]:
        found = self.audit.result(["w"], deleted_ms=deleted_ms)
        return {what: count for what, count in found.wrong.items() if count}


def test_a_workflow_has_one_record_for_each_step_and_each_text_is_counted() -> None:
    topics = Topics()
    topics.answer()
    assert topics.wrong() == {}
    found = topics.audit.result(["w"])
    assert (found.workflows, found.steps, found.texts, found.generated) == (1, 1, 1, 1)


def test_a_step_that_runs_again_is_found_unless_the_offsets_were_deleted_meanwhile() -> None:
    topics = Topics()
    topics.search()
    topics.write(RETRIEVALS.name, a_retrieval(topics.step(1), source=a_source(0)))
    topics.answer()
    twice = {"twice: retries": 1, f"twice: {RETRIEVALS.name}": 1}
    assert topics.wrong() == topics.wrong(500, 4_000) == twice
    assert topics.wrong(2_000) == {}
    topics.answer()
    assert topics.wrong(2_000) == {f"twice: {ANSWERS.name}": 1}, "of answers there is one"


def test_a_workflow_that_ended_before_its_first_step_may_have_been_open_then_too() -> None:
    topics = Topics()
    topics.write(QUERIES.name, a_query("w"))
    cancelled = an_answer("w", "cancelled", source=a_source(1, timestamp_ms=1_000), answer=None)
    topics.write(ANSWERS.name, cancelled)
    assert topics.audit.result(["w", "w"], deleted_ms=[2_000]).read_again == 1


def test_another_text_than_that_of_the_program_is_found() -> None:
    topics = Topics()
    topics.answer(answer="another text")
    assert topics.wrong() == {OTHER_TEXT: 1}

"""The audit of workflows: a step counts once, and an answer is that of its program."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest

from bench.data.made_up import DIMENSION
from bench.reliability.chaos.answers import OTHER_PASSAGES, AnswerAudit, PublishedQuestion
from bench.reliability.chaos.audit import TopicAudit
from bench.reliability.chaos.check_answer import (
    OTHER_CITED,
    OTHER_TEXT,
    PROGRAMS,
    Nearest,
    fields_of,
    written,
    wrong_in_workflow,
)
from bench.reliability.chaos.questions import ChaosQuestion
from carpool.embedding.hashing import HashingEmbedder
from carpool.testing.run_program import run
from carpool.workflow.steps import Found, Generate, Retrieve
from schemas.answer import Answer, Retrieved, StepDone
from schemas.codec import encode
from schemas.headers import KEY_HEADER, ORIGIN_HEADER
from schemas.hit import Hit
from schemas.query import Journal, Query
from schemas.topics import ANSWERS, GROUPS, QUERIES, RETRIES, RETRIEVALS
from schemas.workflow import StepResult
from tests.records import (
    a_group,
    a_grouped_query,
    a_message,
    a_query,
    a_retrieval,
    a_source,
    an_answer,
    some_hits,
)

QUESTION = "what of text 2?"
EMBEDDER = HashingEmbedder(DIMENSION)
KEY = ((KEY_HEADER, b"w"),)
CORPUS = {hit.doc_id: hit for hit in some_hits(3)}


def nearest(text: str, count: int | None) -> list[Hit]:
    rows = EMBEDDER.encode([hit.text for hit in CORPUS.values()])
    order = np.argsort(-(rows @ EMBEDDER.encode([text])[0]), kind="stable")
    return [list(CORPUS.values())[place] for place in order][:count]


def right(program: str, version: int = 1) -> Answer:
    """The answer of a run of a program that finds the passages nearest to each search."""
    told, searches = list[StepDone](), list[Found]()

    def result(step: Retrieve | Generate) -> Found | str:
        if isinstance(step, Retrieve):
            searches.append(Found(nearest(step.text, step.top_k)))
            ids = tuple(hit.doc_id for hit in searches[-1])
            told.append(StepDone(n=1, kind="retrieve", text=step.text, doc_ids=ids))
            return searches[-1]
        told.append(StepDone(n=1, kind="generate", text=written(step, searches)))
        return told[-1].text

    end = run(PROGRAMS[program, version], result, question=QUESTION).answer
    retrieved = tuple(Retrieved(id=hit.doc_id, score=1.0) for hit in end.passages)
    return an_answer("w", retrieved=retrieved, steps=tuple(told), **fields_of(end, searches))


@pytest.mark.parametrize(("name", "version"), PROGRAMS)
def test_the_answer_of_each_program_is_right_and_any_other_is_wrong(
    name: str, version: int
) -> None:
    answer, program = right(name, version), PROGRAMS[name, version]
    assert wrong_in_workflow(answer, program, QUESTION, CORPUS) is None
    first, *others = answer.steps
    other_text = msgspec.structs.replace(first, text="another text")
    place, search = next((n, each) for n, each in enumerate(answer.steps) if each.doc_ids)
    fewer = msgspec.structs.replace(search, doc_ids=search.doc_ids[:-1])
    for wrong, what in (
        ({"answer": "another text"}, OTHER_TEXT),
        ({"retrieved": answer.retrieved[1:]}, OTHER_TEXT),
        ({"steps": (other_text, *others)}, OTHER_TEXT),
        ({"steps": answer.steps[:-1]}, OTHER_TEXT),
        ({"steps": (*answer.steps[:place], fewer, *answer.steps[place + 1 :])}, OTHER_TEXT),
        ({"steps": (*answer.steps, first)}, OTHER_TEXT),
        ({"quotes": ()}, OTHER_CITED),
        ({"citations": answer.citations[1:]}, OTHER_CITED),
    ):
        changed = msgspec.structs.replace(answer, **wrong)
        assert wrong_in_workflow(changed, program, QUESTION, CORPUS) == what, wrong


def test_a_search_finds_the_passages_nearest_to_its_text_and_of_nearly_equal_ones_any() -> None:
    all_passages = Nearest(CORPUS)
    for text in ("text 2", "2", "what of text 3"):
        ids = [hit.doc_id for hit in nearest(text, 2)]
        assert all_passages.is_right(text, ids) and all_passages.is_right(text, ids[:1])
        assert not any(
            all_passages.is_right(text, wrong) for wrong in (ids[1:], ids[:1] * 2, ["unknown"], [])
        )
    assert all_passages.is_right("other", ["d3", "d1"])


class Topics:
    """The records of one workflow, `hyde`, and their audit."""

    def __init__(self, *, has_retrievals: bool = True) -> None:
        question = ChaosQuestion(id="w", text=QUESTION, workflow="hyde")
        self.audit = TopicAudit(0, [question], CORPUS)
        self.offsets: Counter[str] = Counter()
        self.write(QUERIES.name, a_query("w"))
        if not has_retrievals:
            self.write(GROUPS.name, a_group(a_grouped_query(self.step(1), headers=KEY)))
            return
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
        own += (*KEY, *headers)
        at_ms = 1_000 if topic == QUERIES.name else 3_000
        message = a_message(topic, place, key=b"w", value=value, headers=own, timestamp_ms=at_ms)
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


def test_the_version_of_a_program_is_known_although_the_retrievals_were_removed() -> None:
    topics = Topics(has_retrievals=False)
    topics.answer()
    assert topics.wrong() == {}


def test_a_step_that_runs_again_is_found_unless_the_offsets_were_deleted_meanwhile() -> None:
    topics = Topics()
    topics.search()
    topics.write(RETRIEVALS.name, a_retrieval(topics.step(1), source=a_source(0)))
    removed = topics.audit.result(["w"], {a_source(0).place}, [2_000])
    assert removed.read_again == 1 and not any(removed.wrong.values()), "it has no answer"
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
    found = topics.audit.result(["w", "w"], deleted_ms=[2_000])
    assert found.read_again == 2, "and one without an answer"


def test_another_text_than_that_of_the_program_is_found() -> None:
    topics = Topics()
    topics.answer(answer="another text")
    assert topics.wrong() == {OTHER_TEXT: 1}


def test_a_first_search_with_passages_of_another_question_is_found() -> None:
    question = ChaosQuestion(id="w", text=QUESTION, workflow="recomp")
    judge, answer = AnswerAudit({"w": question}, CORPUS), right("recomp")
    first, *others = answer.steps
    changed = msgspec.structs.replace(first, doc_ids=first.doc_ids[::-1])
    other = msgspec.structs.replace(answer, steps=(changed, *others))
    for given, is_found in ((answer, False), (other, True)):
        found = judge.wrong({"r": (given, 0)}, {"r": PublishedQuestion("w", 0, ())}, {"r": 1})
        assert bool(found[OTHER_PASSAGES]) == is_found


def test_an_id_that_is_asked_again_may_get_the_answer_of_an_earlier_version() -> None:
    question = ChaosQuestion(id="w", text=QUESTION, workflow="side_by_side")
    judge, first = AnswerAudit({"w": question}, CORPUS), right("side_by_side")
    again = msgspec.structs.replace(first, replayed=True)
    places = [a_source(0).place, a_source(1).place]
    published = {place: PublishedQuestion("w", 0, KEY) for place in places}
    answers = {places[0]: (first, 1), places[1]: (again, 2)}
    wrong = judge.wrong(answers, published, {places[0]: 1, places[1]: 2})
    assert not any(wrong.values())


def test_a_workflow_that_ends_between_two_steps_has_no_record_twice() -> None:
    topics = Topics()
    end = msgspec.structs.replace(
        right("hyde"), status="failed", source=a_source(0, timestamp_ms=1_000), answer=None
    )
    topics.write(RETRIEVALS.name, end)
    assert topics.audit.result(["w"]).wrong[f"twice: {RETRIEVALS.name}"] == 0

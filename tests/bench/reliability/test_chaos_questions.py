"""The questions of a chaos run, and what its answers must be."""

from __future__ import annotations

from collections import Counter

from bench.reliability.chaos.answer_audit import AnswerAudit, AnswerCounts
from bench.reliability.chaos.llm_calls import LlmCalls, StandInRequests, calls_in
from bench.reliability.chaos.questions import ALWAYS, FAILS_AT_FIRST, WORD, chaos_questions
from producers.read_questions import Question
from schemas.answer import Answer, Retrieved
from tests.records import a_source, an_answer

GIVEN = [Question(text=f"what of {number}", vector=bytes(4)) for number in range(4_000)]
RIGHT = {"a": ("p-1", "p-2"), "dead": ("p-3",), "withdrawn": ("p-1", "p-2")}


def test_the_questions_are_drawn_from_the_seed_and_have_both_classes_and_all_kinds() -> None:
    found = chaos_questions(GIVEN, 1)
    assert found == chaos_questions(GIVEN, 1)
    assert found != chaos_questions(GIVEN, 2)
    assert len(found.interactive) + len(found.batch) == len(GIVEN)
    assert 0.2 < len(found.batch) / len(GIVEN) < 0.3
    for questions in (found.interactive, found.batch):
        ids = Counter(each.id for each in questions)
        assert 0.03 < sum(count - 1 for count in ids.values()) / len(questions) < 0.07
        by_id = {each.id: each for each in questions}
        assert all(each == by_id[each.id] for each in questions), "an id asks the same again"
    asked = {each.id: each for each in (*found.interactive, *found.batch)}
    words = {word: each.id for each in asked.values() for word in WORD.findall(each.text or "")}
    assert words.keys() == found.broken.keys()
    assert {words[word] for word, count in found.broken.items() if count == ALWAYS} == found.dead
    assert FAILS_AT_FIRST in found.broken.values()
    assert 5 < len(found.dead) < 50


def test_some_questions_repeat_a_text_some_are_withdrawn_and_the_others_stay() -> None:
    plain = chaos_questions(GIVEN, 1)
    found = chaos_questions(GIVEN, 1, repeat_share=0.2, cancel_share=0.1)
    assert (found.broken, found.dead, found.rows.keys()) == (
        plain.broken,
        plain.dead,
        plain.rows.keys(),
    )
    assert found.has_equal_texts and not plain.has_equal_texts
    asked = {str(each.id): each for each in (*found.interactive, *found.batch)}
    repeats = [id for id, row in found.rows.items() if row != int(id[2:])]
    assert 0.15 < len(repeats) / len(asked) < 0.25
    for id in repeats:
        assert (asked[id].text, asked[id].vector) == (
            GIVEN[found.rows[id]].text,
            GIVEN[found.rows[id]].vector,
        )
    assert 0.05 < len(found.withdrawn) / len(asked) < 0.15
    assert not found.withdrawn & found.dead
    assert not plain.withdrawn


def answer(offset: int, *, query_id: str = "a", **fields: object) -> Answer:
    passages = tuple(Retrieved(id=each, score=1.0) for each in RIGHT[query_id])
    source = a_source(offset, timestamp_ms=1_000)
    given = {"source": source, "retrieved": passages, "answer": f"of {query_id}"}
    return an_answer(query_id, **given | fields)


def counts(*answers: Answer, replays: tuple[int, ...] = ()) -> AnswerCounts:
    audit = AnswerAudit(RIGHT, lambda id: (f"of {id}",), {"dead"}, {"withdrawn"})
    for each in replays:
        audit.replayed(a_source(each).place)
    for each in answers:
        audit.take(each, 3_500)
    return audit.result()


def test_good_answers_are_counted() -> None:
    found = counts(
        answer(0),
        answer(1, replayed=True),
        answer(2, query_id="dead", status="failed", retrieved=(), answer=None),
        answer(3, query_id="dead"),
        replays=(3,),
    )
    assert found == AnswerCounts(
        statuses={"failed": 1, "ok": 3},
        generated=2,
        replayed=1,
        reused=0,
        cancelled=0,
        failed_as_meant=1,
        failed_wrongly=0,
        other_passages=0,
        other_texts=0,
        generated_again=0,
        slowest_s=2.5,
    )


def test_a_failed_answer_needs_a_cause_in_the_load() -> None:
    failed = {"status": "failed", "retrieved": (), "answer": None}
    assert counts(answer(0, **failed)).failed_wrongly == 1
    again = answer(3, query_id="dead", **failed)
    assert counts(again, replays=(3,)).failed_wrongly == 1, "the replay of a letter must succeed"


def test_a_withdrawn_question_may_end_as_cancelled_or_with_an_answer_and_no_other_may() -> None:
    cancelled = {"status": "cancelled", "retrieved": (), "answer": None}
    found = counts(
        answer(0),
        answer(1, query_id="withdrawn", **cancelled),
        answer(2, query_id="withdrawn", replayed=True),
    )
    assert (found.cancelled, found.reused, found.failed_as_meant) == (1, 1, 0)
    assert found.failed_wrongly == found.generated_again == 0
    assert counts(answer(0, **cancelled)).failed_wrongly == 1
    assert counts(answer(0, query_id="dead", **cancelled)).failed_wrongly == 1


def test_other_passages_or_another_order_are_found() -> None:
    swapped = tuple(Retrieved(id=each, score=1.0) for each in ("p-2", "p-1"))
    assert counts(answer(0, retrieved=swapped)).other_passages == 1
    assert counts(answer(0, retrieved=())).other_passages == 1


def test_the_text_of_another_question_no_text_and_half_a_text_are_found() -> None:
    for text in ("of dead", None, "of"):
        assert counts(answer(0, answer=text)).other_texts == 1
    foreign = answer(0, query_id="withdrawn", status="partial", answer="of a")
    assert counts(foreign).other_texts == 1
    assert counts(answer(0, status="failed", answer=None)).other_texts == 0


def test_an_id_that_is_generated_twice_or_answered_otherwise_is_found() -> None:
    assert counts(answer(0), answer(1)).generated_again == 1
    assert counts(answer(0), answer(1, replayed=True, answer="other")).generated_again == 1


def test_warm_ups_are_no_calls_and_calls_of_killed_stand_ins_are_added() -> None:
    ids = {"a": 1, "b": 2, "a/warm-up": 3}
    done = {"a": 1, "a/warm-up": 2}
    found = calls_in(StandInRequests(started=6, faulted=1, started_by_id=ids, completed_by_id=done))
    assert found == LlmCalls(started=3, faulted=1, warm_ups=2)
    assert found + found == LlmCalls(started=6, faulted=2, warm_ups=4)

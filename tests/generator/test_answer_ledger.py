"""What becomes of a record, by what the log of answers says: the state machine alone."""

from __future__ import annotations

import itertools

from generator.plan.answer_dedup import (
    AnswerDedup,
    DedupQuery,
    GenerateAnswer,
    LoggedAnswer,
    RefuseConflict,
    ReplayAnswer,
    SkipAnswered,
)
from generator.plan.query_digest import query_digest
from generator.plan.recent import Recent
from schemas.answer import Status
from schemas.query import Generation, Query
from schemas.record import Source

_ids = itertools.count(1)


def published(offset: int, partition: int = 0) -> Source:
    return Source(
        topic="rag.queries.v1", partition=partition, offset=offset, timestamp_ms=1_000 + offset
    )


def asked(
    offset: int,
    query_id: str = "q",
    digest: str = "d",
    partition: int = 0,
    deadline_us: int | None = None,
) -> DedupQuery:
    return DedupQuery(
        unit_id=next(_ids),
        query_id=query_id,
        source=published(offset),
        digest=digest,
        partition=partition,
        deadline_us=deadline_us,
    )


def answer(of: DedupQuery, offset: int, status: Status = "ok") -> LoggedAnswer:
    return LoggedAnswer(
        query_id=of.query_id,
        source=of.source,
        status=status,
        digest=of.digest,
        partition=of.partition,
        offset=offset,
    )


def ledger(*answers: LoggedAnswer, ids_max: int = 1_000) -> AnswerDedup:
    found = AnswerDedup(ids_max=ids_max)
    found.assigned([0])
    for one in answers:
        assert found.seen(one) == ()
    assert found.read(0) == ()
    return found


def test_a_new_id_is_generated() -> None:
    first = asked(1)
    assert ledger().arrived(first) == (GenerateAnswer(unit_id=first.unit_id),)


def test_an_id_with_an_ok_answer_gets_it_again() -> None:
    earlier, again = asked(1), asked(2)
    assert ledger(answer(earlier, 70)).arrived(again) == (
        ReplayAnswer(unit_id=again.unit_id, partition=0, offset=70),
    )


def test_what_failed_or_was_late_is_tried_again() -> None:
    statuses: tuple[Status, ...] = ("failed", "expired", "shed", "partial")
    for status in statuses:
        again = asked(2)
        assert ledger(answer(asked(1), 70, status)).arrived(again) == (
            GenerateAnswer(unit_id=again.unit_id),
        )


def test_an_id_that_answered_another_question_is_refused_and_stays_with_its_own() -> None:
    known = ledger(answer(asked(1, digest="one"), 70))
    other, same = asked(2, digest="two"), asked(3, digest="one")
    assert known.arrived(other) == (RefuseConflict(unit_id=other.unit_id),)
    known.ended(other.unit_id, has_answer=True)
    known.seen(answer(other, 71, "failed"))
    assert known.arrived(same) == (ReplayAnswer(unit_id=same.unit_id, partition=0, offset=70),)


def test_a_record_that_was_answered_before_a_crash_is_skipped_whatever_the_answer_was() -> None:
    statuses: tuple[Status, ...] = ("ok", "failed", "expired")
    for status in statuses:
        before = asked(1)
        again = asked(1)
        assert ledger(answer(before, 70, status)).arrived(again) == (
            SkipAnswered(unit_id=again.unit_id),
        )


def test_a_record_at_the_same_place_of_a_log_begun_anew_is_another_record() -> None:
    before = asked(1)
    again = DedupQuery(
        unit_id=9,
        query_id="q",
        source=Source(topic="rag.queries.v1", partition=0, offset=1),
        digest="d",
        partition=0,
    )
    assert ledger(answer(before, 70)).arrived(again) == (
        ReplayAnswer(unit_id=9, partition=0, offset=70),
    )


def test_records_wait_until_their_partition_is_read_and_no_longer() -> None:
    known = AnswerDedup(ids_max=10)
    known.assigned([0, 1])
    here, there = asked(1), asked(2, "other", partition=1)
    assert known.arrived(here) == known.arrived(there) == ()
    assert known.unread == (0, 1)
    assert known.read(1) == (GenerateAnswer(unit_id=there.unit_id),)
    assert known.seen(answer(asked(0), 70)) == ()
    assert known.read(0) == (ReplayAnswer(unit_id=here.unit_id, partition=0, offset=70),)
    assert known.unread == ()


def test_of_two_records_with_one_id_second_waits_until_log_shows_the_answer_to_the_first() -> None:
    known, first, second = ledger(), asked(1), asked(2)
    known.arrived(first)
    assert known.arrived(second) == ()
    assert known.ended(first.unit_id, has_answer=True) == ()
    assert known.handed_over == 1
    assert known.seen(answer(first, 70)) == (
        ReplayAnswer(unit_id=second.unit_id, partition=0, offset=70),
    )
    assert known.handed_over == 0
    known.check_integrity()


def test_when_the_first_fails_the_second_is_tried_and_the_third_waits_on() -> None:
    known, first, second, third = ledger(), asked(1), asked(2), asked(3)
    for one in (first, second, third):
        known.arrived(one)
    known.ended(first.unit_id, has_answer=True)
    assert known.seen(answer(first, 70, "failed")) == (GenerateAnswer(unit_id=second.unit_id),)
    known.check_integrity()


def test_when_the_first_leaves_without_an_answer_the_second_is_tried_at_once() -> None:
    known, first, second = ledger(), asked(1), asked(2)
    known.arrived(first)
    known.arrived(second)
    assert known.ended(first.unit_id, has_answer=False) == (GenerateAnswer(unit_id=second.unit_id),)


def test_two_copies_of_one_record_get_one_answer() -> None:
    known, first, copy = ledger(), asked(1), asked(1)
    known.arrived(first)
    assert known.arrived(copy) == ()
    known.ended(first.unit_id, has_answer=True)
    assert known.seen(answer(first, 70, "failed")) == (SkipAnswered(unit_id=copy.unit_id),)


def test_replays_of_one_id_do_not_wait_for_each_other() -> None:
    known, second, third = ledger(answer(asked(1), 70)), asked(2), asked(3)
    assert known.arrived(second) == (ReplayAnswer(unit_id=second.unit_id, partition=0, offset=70),)
    assert known.arrived(third) == (ReplayAnswer(unit_id=third.unit_id, partition=0, offset=70),)


def test_a_stored_answer_that_is_gone_is_generated_once_and_then_replayed() -> None:
    known, second, third = ledger(answer(asked(1), 70)), asked(2), asked(3)
    known.arrived(second)
    known.arrived(third)
    assert known.gone(second.unit_id, 70) == ()  # the third's turn to find out comes first
    assert known.gone(third.unit_id, 70) == (GenerateAnswer(unit_id=third.unit_id),)
    known.ended(third.unit_id, has_answer=True)
    assert known.seen(answer(third, 90)) == (
        ReplayAnswer(unit_id=second.unit_id, partition=0, offset=90),
    )
    known.check_integrity()


def test_a_newer_answer_outlives_the_news_that_an_older_one_is_gone() -> None:
    known, second = ledger(answer(asked(1), 70)), asked(2)
    known.arrived(second)
    known.seen(answer(asked(0), 90))
    assert known.gone(second.unit_id, 70) == (
        ReplayAnswer(unit_id=second.unit_id, partition=0, offset=90),
    )


def test_deleted_answers_are_not_replayed() -> None:
    known, again = ledger(answer(asked(1), 70)), asked(2)
    known.deleted("q")
    assert known.arrived(again) == (GenerateAnswer(unit_id=again.unit_id),)


def test_an_answer_without_a_digest_is_not_replayed_since_nobody_knows_to_what_it_is() -> None:
    old = LoggedAnswer(
        query_id="q", source=published(1), status="ok", digest=None, partition=0, offset=7
    )
    again = asked(2)
    assert ledger(old).arrived(again) == (GenerateAnswer(unit_id=again.unit_id),)


def test_what_waits_for_its_turn_beyond_its_deadline_is_let_go() -> None:
    known, first, second = ledger(), asked(1), asked(2, deadline_us=500)
    known.arrived(first)
    known.arrived(second)
    assert known.expired(499) == ()
    assert known.expired(500) == (GenerateAnswer(unit_id=second.unit_id),)
    assert known.expired(501) == ()
    known.ended(second.unit_id, has_answer=True)
    known.seen(answer(second, 70, "expired"))
    known.check_integrity()


def test_nothing_expires_that_may_have_its_answer_already() -> None:
    known = AnswerDedup(ids_max=10)
    known.assigned([0])
    known.arrived(asked(1, deadline_us=500))
    assert known.expired(500) == (), "its partition is not read yet"
    (generate,) = known.read(0)
    known.arrived(asked(1, deadline_us=500))
    assert known.expired(500) == (), "its copy is at work"
    assert known.ended(generate.unit_id, has_answer=True) == ()


def test_a_stored_answer_that_comes_too_late_is_not_waited_for() -> None:
    known, again = ledger(answer(asked(1), 70)), asked(2, deadline_us=500)
    known.arrived(again)
    assert known.expired(500) == (GenerateAnswer(unit_id=again.unit_id),)
    assert known.gone(again.unit_id, 70) == ()


def test_of_revoked_records_nothing_is_left_and_who_waited_for_them_goes_on() -> None:
    known, first, second, third = ledger(), asked(1), asked(2), asked(3)
    for one in (first, second, third):
        known.arrived(one)
    assert known.revoked([first.unit_id, third.unit_id]) == (
        GenerateAnswer(unit_id=second.unit_id),
    )
    assert known.ended(first.unit_id, has_answer=True) == ()
    known.check_integrity()


def test_an_answer_handed_over_and_discarded_is_not_counted_when_its_unit_comes_again() -> None:
    known, first = ledger(), asked(1)
    known.arrived(first)
    known.ended(first.unit_id, has_answer=True)
    assert known.arrived(first) == (GenerateAnswer(unit_id=first.unit_id),)
    assert known.handed_over == 0
    known.check_integrity()


def test_what_log_said_of_partition_is_known_when_it_comes_again_but_not_what_was_in_hand() -> None:
    known, first = ledger(answer(asked(9, "known"), 70)), asked(1)
    known.arrived(first)
    known.ended(first.unit_id, has_answer=True)
    known.revoked([first.unit_id])
    assert known.handed_over == 0
    known.assigned([0])
    again, other = asked(1), asked(10, "known")
    assert known.arrived(again) == known.arrived(other) == ()
    assert known.read(0) == (
        GenerateAnswer(unit_id=again.unit_id),
        ReplayAnswer(unit_id=other.unit_id, partition=0, offset=70),
    )


def test_the_oldest_ids_are_forgotten_and_the_newest_half_never() -> None:
    known = ledger(*(answer(asked(n, f"q-{n}"), n) for n in range(100)), ids_max=20)
    assert known.ids <= 20
    for n in range(90, 100):
        (action,) = known.arrived(asked(1_000 + n, f"q-{n}"))
        assert isinstance(action, ReplayAnswer)
    (action,) = known.arrived(asked(5_000, "q-0"))
    assert isinstance(action, GenerateAnswer)


def test_a_dictionary_of_recent_entries_never_holds_more_than_it_may() -> None:
    recent: Recent[int, int] = Recent(10)
    for n in range(1_000):
        recent.put(n, n)
        assert recent.entries <= 10
        assert all(recent.get(m) == m and m in recent for m in range(max(0, n - 4), n + 1))
    recent.discard(999)
    assert 999 not in recent


def test_the_same_question_has_the_same_digest_however_urgent_it_is() -> None:
    question = Query(query_id="a", text="why?", top_k=3)
    for same in (
        Query(query_id="b", text="why?", top_k=3),
        Query(query_id="a", text="why?", top_k=3, deadline=5, priority=-3),
        Query(query_id="a", text="why?", top_k=3, vector=b"\0\0\0\0"),
        Query(query_id="a", text="why?", top_k=3, generation=Generation()),
    ):
        assert query_digest(same) == query_digest(question)
    for other in (
        Query(query_id="a", text="why? ", top_k=3),
        Query(query_id="a", text="why?"),
        Query(query_id="a", text="why?", top_k=3, nprobe=4),
        Query(query_id="a", text="why?", top_k=3, tenant="t"),
        Query(query_id="a", text="why?", top_k=3, filter={"lang": "en"}),
        Query(query_id="a", text="why?", top_k=3, embedding_model="m"),
        Query(query_id="a", text="why?", top_k=3, conversation_id="c"),
        Query(query_id="a", text="why?", top_k=3, generation=Generation(seed=1)),
    ):
        assert query_digest(other) != query_digest(question)


def test_the_order_in_which_a_filter_is_written_changes_no_digest() -> None:
    one, two = (
        Query(query_id="a", text="x", filter={"a": 1, "b": 2}),
        Query(query_id="a", text="x", filter={"b": 2, "a": 1}),
    )
    assert query_digest(one) == query_digest(two)

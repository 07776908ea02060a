"""The audit of every topic: what is lost, what came twice, what was not published."""

from __future__ import annotations

from collections import Counter

from bench.reliability.chaos.answer_audit import AnswerAudit
from bench.reliability.chaos.audit import EXAMPLES_MAX, RETRIES, AuditResult, TopicAudit
from carpool.kafka.records import TopicPartition
from schemas.codec import encode
from schemas.headers import ATTEMPT_HEADER, ORIGIN_HEADER, REPLAYED_FROM_HEADER
from schemas.record import Record
from schemas.topics import ANSWERS, GROUPS, QUERIES, RETRIEVALS, RETRY_TOPICS, SCANS
from tests.records import (
    a_group,
    a_grouped_query,
    a_message,
    a_query,
    a_retrieval,
    a_source,
    an_answer,
)


class Topics:
    """Writes records as the services do, and audits them."""

    def __init__(self) -> None:
        self.audit = TopicAudit(1_000_000, AnswerAudit({}, lambda _: [None], ()))
        self.offsets: Counter[str] = Counter()

    def write(self, topic: str, key: str, record: Record, *headers: tuple[str, bytes]) -> None:
        value, own = encode(record, event_id="e", source="t", time_us=0)
        self.audit.take(
            a_message(
                topic,
                self.offsets[topic],
                key=key.encode(),
                value=value,
                headers=own + headers,
                timestamp_ms=1_002_500,
            )
        )
        self.offsets[topic] += 1

    def ask(self, *query_ids: str) -> None:
        for query_id in query_ids:
            self.write(QUERIES.name, query_id, a_query(query_id))

    def group(self, *offsets: int) -> None:
        queries = [a_grouped_query(source=a_source(offset)) for offset in offsets]
        self.write(GROUPS.name, "", a_group(*queries, grouper="g-1"))

    def retrieve(self, offset: int, *, is_final: bool = True) -> None:
        self.write(RETRIEVALS.name, "q", a_retrieval(source=a_source(offset), is_final=is_final))

    def answer(self, offset: int | None) -> None:
        source = None if offset is None else a_source(offset)
        self.write(ANSWERS.name, "q", an_answer(f"q-{offset}", source=source))

    def whole_way(self, *offsets: int) -> None:
        self.group(*offsets)
        for offset in offsets:
            self.retrieve(offset)
            self.answer(offset)

    def result(self, *acknowledged: str) -> AuditResult:
        return self.audit.result(acknowledged)


def test_the_audit_holds_when_every_question_went_its_way_once() -> None:
    topics = Topics()
    topics.ask("a", "b")
    topics.retrieve(0, is_final=False)  # a draft
    topics.whole_way(0, 1)
    found = topics.result("a", "b")
    assert found.holds
    assert (found.published, found.answers.statuses, found.violations) == (2, {"ok": 2}, ())


def test_an_answer_of_an_earlier_service_counts_among_the_retrievals() -> None:
    topics = Topics()
    topics.ask("a")
    for topic in (RETRIEVALS, ANSWERS, RETRIEVALS):
        topics.write(topic.name, "q", an_answer("q-0", "expired", source=a_source(0)))
    found = topics.result("a")
    assert (found.lost, found.duplicates[RETRIEVALS.name]) == (0, 1)


def test_a_question_without_an_answer_is_lost_and_the_line_says_where_it_was_last_seen() -> None:
    topics = Topics()
    topics.ask("a")
    topics.group(0)
    topics.retrieve(0)
    found = topics.result("a")
    assert not found.holds
    assert found.lost == 1
    (violation,) = found.violations
    assert violation.line() == (
        "lost: a (rag.queries.v1/0/0), last seen in rag.retrievals.v1: "
        "rag.queries.v1 0/0 at 2.50 s; rag.groups.v1 0/0 at 2.50 s, part 0 by g-1; "
        "rag.retrievals.v1 0/0 at 2.50 s; rag.answers.v1 never"
    )


def test_a_question_that_the_run_removed_is_not_lost() -> None:
    topics = Topics()
    topics.ask("a", "b", "c")
    topics.whole_way(0)
    gone = {a_source(offset).place for offset in (0, 1)}
    found = topics.audit.result(["a", "b", "c"], gone)
    assert (found.lost, found.removed) == (1, 1)


def test_what_comes_twice_is_found_in_each_topic() -> None:
    topics = Topics()
    topics.ask("a", "b")
    topics.whole_way(0, 1)
    topics.group(1)
    topics.retrieve(0)
    topics.retrieve(0)
    topics.answer(1)
    found = topics.result("a", "b")
    assert found.duplicates == {
        GROUPS.name: 1,
        RETRIEVALS.name: 2,
        ANSWERS.name: 1,
        RETRIES: 0,
        SCANS.name: 0,
    }
    assert not found.holds
    whats = {violation.what for violation in found.violations}
    assert whats == {f"twice in {topic}" for topic in (GROUPS.name, RETRIEVALS.name, ANSWERS.name)}


def test_a_question_that_is_missing_in_its_topic_or_is_there_twice_is_found() -> None:
    topics = Topics()
    topics.ask("a")
    topics.whole_way(0)
    found = topics.result("a", "b")
    assert (found.unpublished, found.published_twice, found.holds) == (1, 0, False)
    topics.ask("a")
    topics.whole_way(1)
    found = topics.result("a")
    assert (found.published, found.published_twice, found.lost) == (2, 1, 0)
    assert [one.what for one in found.violations] == ["published twice"] * 2
    assert found.holds, "the client wrote it twice, and each copy has its answer"


def test_records_about_a_question_that_was_not_published_break_the_audit() -> None:
    topics = Topics()
    topics.ask("a")
    topics.whole_way(0)
    topics.answer(7)
    topics.answer(None)
    found = topics.result("a")
    assert (found.foreign, found.holds) == (2, False)


def test_a_retry_may_come_once_more_in_each_topic_but_the_last() -> None:
    topics = Topics()
    topics.ask("a")
    topics.group(0)
    topics.retrieve(0)
    retry = ((ORIGIN_HEADER, b"rag.queries.v1/0/0/0"), (ATTEMPT_HEADER, b"2"))
    topics.write(RETRY_TOPICS[0], "a", a_query("a"), *retry)
    topics.whole_way(0)
    found = topics.result("a")
    assert (found.published, found.retries, found.holds) == (1, 1, True)
    topics.write(RETRY_TOPICS[0], "a", a_query("a"), *retry)
    topics.whole_way(0)
    assert topics.result("a").duplicates == {
        GROUPS.name: 1,
        RETRIEVALS.name: 1,
        ANSWERS.name: 1,
        RETRIES: 1,
        SCANS.name: 0,
    }


def test_a_replayed_letter_is_a_question_of_its_own_and_is_replayed_once() -> None:
    topics, letter = Topics(), (REPLAYED_FROM_HEADER, b"rag.queries.v1.dlq/0/0")
    topics.ask("a")
    topics.whole_way(0)
    topics.write(QUERIES.name, "a", a_query("a"), letter)
    assert topics.result("a").lost == 1
    topics.whole_way(1)
    found = topics.result("a")
    assert (found.published, found.replays, found.holds) == (2, 1, True)
    topics.write(QUERIES.name, "a", a_query("a"), letter)
    topics.whole_way(2)
    assert (topics.result("a").replayed_twice, topics.result("a").holds) == (1, False)


def test_offsets_behind_the_last_record_of_an_input_are_found() -> None:
    topics = Topics()
    topics.ask("a", "b")
    topics.whole_way(0, 1)
    at_end = {TopicPartition(QUERIES.name, 0): 2, TopicPartition(GROUPS.name, 0): 1}
    at_end[TopicPartition(RETRIEVALS.name, 0)] = 3  # after a transaction marker
    assert topics.audit.behind(at_end) == {}
    found = topics.audit.behind(at_end | {TopicPartition(QUERIES.name, 0): 1})
    assert found == {f"{QUERIES.name}/0": 1}


def test_each_kind_of_violation_has_its_own_limit_of_examples() -> None:
    topics = Topics()
    ids = [str(number) for number in range(3 * EXAMPLES_MAX)]
    topics.ask(*ids)
    topics.group(0)
    topics.group(0)
    found = topics.result(*ids)
    assert Counter(violation.what for violation in found.violations) == {
        "lost": EXAMPLES_MAX,
        f"twice in {GROUPS.name}": 1,
    }

"""What was published against every topic: what is lost, what came twice, what nobody asked."""

from __future__ import annotations

from collections import Counter

from bench.reliability.chaos.books import (
    EXAMPLES_MAX,
    ChaosBooks,
    SeenRecord,
    TopicLedger,
    fault_lines,
)
from schemas.answer import unanswered
from schemas.codec import encode
from schemas.group import Group, GroupedQuery
from schemas.headers import ORIGIN_HEADER
from schemas.query import Query
from schemas.record import ClusterId, Record, Source
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, GROUPS, QUERIES, RETRIEVALS


class Log:
    """Writes records as the services do, and closes the books over them."""

    def __init__(self) -> None:
        self.ledger = TopicLedger(1_000_000)
        self.offsets: dict[str, int] = {}

    def write(self, topic: str, key: str, record: Record, *headers: tuple[str, bytes]) -> None:
        value, ours = encode(record, event_id="e", source="t", time_us=0)
        offset = self.offsets[topic] = self.offsets.get(topic, -1) + 1
        self.ledger.take(
            SeenRecord(
                topic=topic,
                partition=0,
                offset=offset,
                timestamp_ms=1_002_500,
                key=key,
                value=value,
                headers=ours + headers,
            )
        )

    def ask(self, query_id: str, *headers: tuple[str, bytes]) -> None:
        self.write(QUERIES.name, query_id, Query(query_id=query_id, text="x"), *headers)

    def group(self, *offsets: int) -> None:
        queries = tuple(
            GroupedQuery(
                query=Query(query_id="q", text="x"),
                source=source(offset),
                arrival_us=0,
                vector=b"0000",
                clusters=(ClusterId(1),),
            )
            for offset in offsets
        )
        group = Group(
            index_version="i",
            centroids_fingerprint="c",
            embedding_model="m",
            grouper="g-1",
            window_id=1,
            lane=0,
            lane_count=1,
            sequence=0,
            groups_in_window_for_lane=1,
            queries=queries,
            clusters=(ClusterId(1),),
        )
        self.write(GROUPS.name, "", group)

    def retrieve(self, offset: int, *, is_final: bool = True) -> None:
        retrieval = Retrieval(
            query=Query(query_id="q", text="x"),
            source=source(offset),
            revision=1,
            is_final=is_final,
            index_version="i",
            embedding_model="m",
            hits=(),
            skipped_clusters=(),
        )
        self.write(RETRIEVALS.name, "q", retrieval)

    def answer(self, offset: int | None) -> None:
        answer = unanswered(
            query_id="q",
            status="expired",
            stage="grouper",
            error_type="expired",
            message="late",
            source=None if offset is None else source(offset),
        )
        self.write(ANSWERS.name, "q", answer)

    def whole_way(self, *offsets: int) -> None:
        self.group(*offsets)
        for offset in offsets:
            self.retrieve(offset)
            self.answer(offset)

    def close(self, *acknowledged: str) -> ChaosBooks:
        return self.ledger.close(acknowledged)


def source(offset: int) -> Source:
    return Source(topic=QUERIES.name, partition=0, offset=offset)


def test_the_books_hold_when_every_question_went_its_way_once() -> None:
    log = Log()
    log.ask("a")
    log.ask("b")
    log.whole_way(0, 1)
    books = log.close("a", "b")
    assert books.holds
    assert (books.published, books.statuses, books.faults) == (2, {"expired": 2}, ())


def test_a_question_without_an_answer_is_lost_and_the_fault_says_where_it_was_last_seen() -> None:
    log = Log()
    log.ask("a")
    log.group(0)
    log.retrieve(0)
    books = log.close("a")
    assert not books.holds
    assert books.lost == 1
    (fault,) = books.faults
    assert (fault.what, fault.query_id, fault.last_seen) == ("lost", "a", RETRIEVALS.name)
    (line,) = fault_lines(books.faults)
    assert "a (rag.queries.v1/0/0)" in line
    assert "rag.groups.v1 0/0 at 2.50 s, part 0 by g-1" in line
    assert "rag.answers.v1 never" in line


def test_what_comes_twice_is_found_in_each_topic_also_when_the_answer_came_once() -> None:
    log = Log()
    log.ask("a")
    log.ask("b")
    log.whole_way(0, 1)
    log.group(1)
    log.retrieve(0)
    log.retrieve(0)
    log.answer(1)
    books = log.close("a", "b")
    assert books.duplicates == {GROUPS.name: 1, RETRIEVALS.name: 2, ANSWERS.name: 1}
    assert not books.holds
    assert {fault.what for fault in books.faults} == {
        f"twice in {topic}" for topic in books.duplicates
    }


def test_a_draft_is_no_retrieval() -> None:
    log = Log()
    log.ask("a")
    log.retrieve(0, is_final=False)
    log.whole_way(0)
    assert log.close("a").holds


def test_a_question_that_was_acknowledged_and_is_not_in_its_topic_breaks_the_books() -> None:
    log = Log()
    log.ask("a")
    log.whole_way(0)
    books = log.close("a", "b")
    assert books.unpublished == 1
    assert not books.holds


def test_a_question_that_is_in_its_topic_twice_breaks_the_books_although_each_is_answered() -> None:
    log = Log()
    log.ask("a")
    log.ask("a")
    log.whole_way(0, 1)
    books = log.close("a")
    assert (books.published, books.published_twice, books.lost) == (2, 1, 0)
    assert not books.holds


def test_records_about_what_nobody_published_break_the_books() -> None:
    log = Log()
    log.ask("a")
    log.whole_way(0)
    log.answer(7)
    log.answer(None)
    books = log.close("a")
    assert books.foreign == 2
    assert not books.holds


def test_a_query_that_a_service_sent_round_again_owes_no_answer_of_its_own() -> None:
    log = Log()
    log.ask("a")
    log.ask("a", (ORIGIN_HEADER, b"rag.queries.v1/0/0/0"))
    log.whole_way(0)
    books = log.close("a")
    assert books.reentered == 1
    assert books.holds


def test_however_many_are_lost_what_came_twice_is_named_too() -> None:
    log = Log()
    for number in range(3 * EXAMPLES_MAX):
        log.ask(f"{number}")
    log.group(0)
    log.group(0)
    books = log.close()
    assert Counter(fault.what for fault in books.faults) == {
        "lost": EXAMPLES_MAX,
        f"twice in {GROUPS.name}": 1,
    }

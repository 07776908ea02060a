"""The audit of every topic: each fault that it is for is found, and only that."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.reliability.chaos.answers import AGAIN, FAILED, OTHER_PASSAGES, OTHER_TENANT
from bench.reliability.chaos.audit import (
    EXAMPLES_MAX,
    NOT_FINISHED,
    OTHER_HEADERS,
    AuditResult,
    TopicAudit,
)
from bench.reliability.chaos.check_answer import OTHER_CITED, OTHER_TEXT, fields_of
from bench.reliability.chaos.questions import ALWAYS, ChaosQuestion
from carpool.kafka.records import TopicPartition
from schemas.answer import Retrieved
from schemas.codec import encode
from schemas.headers import (
    ATTEMPT_HEADER,
    DEADLINE_HEADER,
    INDEX_HEADER,
    KEY_HEADER,
    ORIGIN_HEADER,
    REPLAYED_FROM_HEADER,
    TENANT_HEADER,
)
from schemas.hit import Hit
from schemas.record import ClusterId, Record
from schemas.topics import ANSWERS, GROUPS, QUERIES, RETRIEVALS, RETRY_TOPICS
from tests.records import (
    a_group,
    a_grouped_query,
    a_message,
    a_query,
    a_retrieval,
    a_source,
    an_answer,
)

RIGHT = {
    "a": ("p-1", "p-2"),
    "b": (),
    "dead": ("p-3",),
    "withdrawn": ("p-1", "p-2"),
}
ASKED = {
    id: ChaosQuestion(
        id=id,
        text=f"what of {id}?",
        hits=tuple(Hit(doc_id=row, score=1.0, cluster=ClusterId(0), text=row) for row in RIGHT[id]),
        fails=ALWAYS if id == "dead" else 0,
        is_withdrawn=id == "withdrawn",
    )
    for id in RIGHT
}
REPLAY = (REPLAYED_FROM_HEADER, b"rag.queries.v1.dlq/0/0")
RETRY = (
    (ORIGIN_HEADER, b"rag.queries.v1/0/0/0"),
    (ATTEMPT_HEADER, b"2"),
    (KEY_HEADER, b"a"),
)
PLAN_AGAIN = (RETRY[0], (ATTEMPT_HEADER, b"1"), (INDEX_HEADER, b"2"), RETRY[2])
CORRELATED = (("correlation_id", b"c-1"), ("reply_to", b"r-1"))


def retrieved(*ids: str) -> tuple[Retrieved, ...]:
    return tuple(Retrieved(id=each, score=1.0) for each in ids)


class Topics:
    """Writes records as the services do, and audits them."""

    def __init__(self) -> None:
        self.audit = TopicAudit(1_000_000, ASKED.values(), {})
        self.offsets: Counter[str] = Counter()
        self.asked: list[str] = []
        self.own: list[tuple[tuple[str, bytes], ...]] = []

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

    def ask(self, query_id: str, *headers: tuple[str, bytes]) -> int:
        self.write(QUERIES.name, query_id, a_query(query_id), *headers)
        self.asked.append(query_id)
        self.own.append((*headers, (KEY_HEADER, query_id.encode())))
        return self.offsets[QUERIES.name] - 1

    def carried(self, offset: int) -> tuple[tuple[str, bytes], ...]:
        return self.own[offset] if offset < len(self.own) else ()

    def group(self, *offsets: int) -> None:
        queries = [
            a_grouped_query(source=a_source(offset), headers=self.carried(offset))
            for offset in offsets
        ]
        self.write(GROUPS.name, "", a_group(*queries, grouper="g-1"))

    def retrieve(self, offset: int, *, is_final: bool = True) -> None:
        found = a_retrieval(source=a_source(offset), is_final=is_final)
        self.write(RETRIEVALS.name, "q", found, *self.carried(offset))

    def answer(self, offset: int, **fields: object) -> None:
        query_id = self.asked[offset] if offset < len(self.asked) else "unknown"
        right = {
            "source": a_source(offset, timestamp_ms=1_000_000),
            "retrieved": retrieved(*RIGHT.get(query_id, ())),
            "answer": "unknown",
        }
        if query_id in ASKED:
            right |= fields_of(ASKED[query_id].end)
        answer = an_answer(query_id, **right | fields)
        self.write(ANSWERS.name, query_id, answer, *self.carried(offset))

    def whole_way(self, offset: int, **fields: object) -> None:
        self.group(offset)
        self.retrieve(offset)
        self.answer(offset, **fields)

    def result(self, *acknowledged: str) -> AuditResult:
        return self.audit.result(acknowledged or self.asked)


def wrong(found: AuditResult) -> dict[str, int]:
    return {what: count for what, count in found.wrong.items() if count}


def test_nothing_is_wrong_when_every_question_went_its_way_once() -> None:
    topics = Topics()
    for query_id in "ab":
        offset = topics.ask(query_id)
        topics.retrieve(offset, is_final=False)  # a draft
        topics.whole_way(offset)
    found = topics.result()
    assert (found.published, found.statuses, wrong(found)) == (2, {"ok": 2}, {})
    assert (found.violations, found.slowest_s) == ((), 2.5)


def test_an_answer_of_an_earlier_service_counts_among_the_retrievals() -> None:
    topics = Topics()
    topics.ask("dead")
    for topic in (RETRIEVALS, ANSWERS, RETRIEVALS):
        failed = an_answer("dead", "failed", source=a_source(0), answer=None)
        topics.write(topic.name, "q", failed, *topics.carried(0))
    assert wrong(topics.result()) == {f"twice: {RETRIEVALS.name}": 1}


def test_a_lost_question_is_found_and_the_line_says_where_it_was_last_seen() -> None:
    topics = Topics()
    topics.ask("a")
    topics.group(0)
    topics.retrieve(0)
    found = topics.result()
    assert wrong(found) == {"lost": 1}
    assert found.violations == (
        "lost: a (rag.queries.v1/0/0), last seen in rag.retrievals.v1: "
        "rag.queries.v1 0/0 at 2.50 s; rag.groups.v1 0/0 at 2.50 s, part 0 by g-1; "
        "rag.retrievals.v1 0/0 at 2.50 s; rag.answers.v1 never",
    )
    for topic, left in ((QUERIES, 0), (GROUPS, 0), (RETRIEVALS, 0)):
        committed = topics.audit.ends | {TopicPartition(topic.name, 0): left}
        found = topics.audit.result(["a"], committed=committed)
        assert wrong(found) == {NOT_FINISHED: 1}, "a record waits"
    removed = topics.audit.result(["a"], {a_source(0).place})
    assert (removed.removed, wrong(removed)) == (1, {}), "the run removed it"


@pytest.mark.parametrize("topic", [GROUPS.name, RETRIEVALS.name, ANSWERS.name])
def test_what_comes_twice_is_found_in_each_topic(topic: str) -> None:
    topics = Topics()
    topics.ask("a")
    topics.whole_way(0)
    again = {GROUPS.name: topics.group, RETRIEVALS.name: topics.retrieve}
    again.get(topic, topics.answer)(0)
    assert wrong(topics.result()) == {f"twice: {topic}": 1}


def test_a_question_that_is_missing_in_its_topic_or_is_there_twice_is_found() -> None:
    topics = Topics()
    topics.ask("a")
    topics.whole_way(0)
    assert wrong(topics.result("a", "b")) == {"unpublished": 1}
    topics.ask("a")
    topics.whole_way(1, replayed=True)
    assert wrong(topics.result("a")) == {"published twice": 1}, "and each copy has its answer"


def test_records_about_a_question_that_was_not_published_are_found() -> None:
    topics = Topics()
    topics.ask("a")
    topics.whole_way(0)
    topics.answer(7)
    topics.write(ANSWERS.name, "q", an_answer("q", source=None))
    assert wrong(topics.result()) == {"never published": 2}


def test_a_retry_may_come_once_more_in_each_topic_but_the_last() -> None:
    topics = Topics()
    topics.ask("a")
    topics.group(0)
    topics.retrieve(0)
    topics.write(RETRY_TOPICS[0], "a", a_query("a"), *RETRY)
    topics.whole_way(0)
    found = topics.result()
    assert wrong(found) == {}
    topics.write(RETRY_TOPICS[0], "a", a_query("a"), *RETRY)
    assert wrong(topics.result()) == {"twice: retries": 1}


def test_a_replayed_letter_is_a_question_of_its_own_and_is_replayed_once() -> None:
    topics = Topics()
    topics.ask("dead")
    topics.whole_way(0, status="failed", retrieved=(), answer=None)
    topics.write(f"{QUERIES.name}.dlq", "dead", a_query("dead"))
    topics.whole_way(topics.ask("dead", REPLAY))
    found = topics.result("dead")
    assert (found.letters, found.replays, found.statuses["failed"], wrong(found)) == (1, 1, 1, {})
    topics.whole_way(topics.ask("dead", REPLAY), replayed=True)
    assert wrong(topics.result("dead")) == {"twice: replays": 1}


def test_offsets_behind_the_last_record_of_an_input_are_found() -> None:
    topics = Topics()
    for query_id in "ab":
        topics.whole_way(topics.ask(query_id))
    at_end = {TopicPartition(QUERIES.name, 0): 2, TopicPartition(GROUPS.name, 0): 2}
    at_end[TopicPartition(RETRIEVALS.name, 0)] = 3  # after a transaction marker
    assert topics.audit.behind(at_end) == {}
    found = topics.audit.behind(at_end | {TopicPartition(QUERIES.name, 0): 1})
    assert found == {f"{QUERIES.name}/0": 1}


BAD = {"status": "failed", "retrieved": (), "answer": None}
CANCELLED = {"status": "cancelled", "retrieved": (), "answer": None}
OTHERS = fields_of(ASKED["dead"].end)


@pytest.mark.parametrize(
    ("query_id", "fields", "found"),
    [
        ("a", BAD, FAILED),
        ("dead", BAD, None),
        ("a", CANCELLED, FAILED),
        ("dead", CANCELLED, FAILED),
        ("withdrawn", CANCELLED, None),
        ("a", {"retrieved": retrieved("p-2", "p-1")}, OTHER_PASSAGES),
        ("a", {"retrieved": ()}, OTHER_PASSAGES),
        ("a", {"answer": "of dead"}, OTHER_TEXT),
        ("a", {"answer": "of"}, OTHER_TEXT),
        ("a", {"answer": None}, OTHER_TEXT),
        ("a", {"citations": OTHERS["citations"]}, OTHER_CITED),
        ("a", {"quotes": OTHERS["quotes"]}, OTHER_CITED),
        ("a", {"quotes": ()}, OTHER_CITED),
    ],
)
def test_an_answer_is_that_of_its_question_and_fails_only_for_a_cause(
    query_id: str, fields: dict[str, object], found: str | None
) -> None:
    topics = Topics()
    topics.whole_way(topics.ask(query_id), **fields)
    assert wrong(topics.result()) == ({} if found is None else {found: 1})


def test_the_replay_of_a_letter_must_succeed() -> None:
    topics = Topics()
    topics.whole_way(topics.ask("dead", REPLAY), **BAD)
    assert wrong(topics.result("dead")) == {"unpublished": 1, FAILED: 1}


@pytest.mark.parametrize(
    ("second", "found"),
    [
        ({"replayed": True}, {}),
        ({}, {AGAIN: 1}),
        ({"replayed": True, "answer": "other"}, {OTHER_TEXT: 1}),
    ],
)
def test_an_id_that_is_asked_again_gets_its_answer_again(
    second: dict[str, object], found: dict[str, int]
) -> None:
    topics = Topics()
    topics.whole_way(topics.ask("a"))
    topics.whole_way(topics.ask("a"), **second)
    assert wrong(topics.result()) == found


def test_each_kind_of_violation_has_its_own_limit_of_examples() -> None:
    topics = Topics()
    for _ in range(3 * EXAMPLES_MAX):
        topics.ask("a")
    topics.group(0)
    topics.group(0)
    found = Counter(line.split(":")[0] for line in topics.result().violations)
    assert found == {"lost": EXAMPLES_MAX, "twice": 1}


def test_a_record_with_headers_of_another_question_is_found_in_each_topic() -> None:
    for topic in (GROUPS, RETRIEVALS, ANSWERS, None):
        topics = Topics()
        own = topics.own
        topics.ask("a", *CORRELATED)
        for step, act in ((GROUPS, topics.group), (RETRIEVALS, topics.retrieve)):
            own[0] = (*CORRELATED, own[0][-1]) if step is not topic else (own[0][-1],)
            act(0)
        own[0] = (*CORRELATED, own[0][-1]) if topic is not ANSWERS else (CORRELATED[0], own[0][-1])
        topics.answer(0)
        assert wrong(topics.result()) == ({} if topic is None else {OTHER_HEADERS: 1}), topic


def test_a_question_may_be_late_only_when_its_deadline_has_passed() -> None:
    for deadline_ms, found in ((b"1002500", {}), (b"1002501", {FAILED: 1})):
        topics = Topics()
        late = {"status": "expired", "retrieved": (), "answer": None}
        topics.whole_way(topics.ask("a", (DEADLINE_HEADER, deadline_ms)), **late)
        assert wrong(topics.result()) == found


def test_the_answer_of_another_tenant_is_found() -> None:
    for tenant, found in ((b"north", {}), (b"south", {OTHER_TENANT: 1})):
        topics = Topics()
        for number, own in enumerate((b"north", tenant)):
            offset = topics.ask("a", (TENANT_HEADER, own))
            topics.whole_way(offset, generation_id="g", replayed=number > 0)
        assert wrong(topics.result()) == found


def test_a_query_that_is_planned_again_with_a_newer_index_has_another_group() -> None:
    topics = Topics()
    topics.ask("a")
    topics.group(0)
    topics.write(RETRY_TOPICS[0], "a", a_query("a"), *PLAN_AGAIN)
    topics.whole_way(0)
    assert wrong(topics.result()) == {}
    topics.retrieve(0)
    assert wrong(topics.result()) == {f"twice: {RETRIEVALS.name}": 1}

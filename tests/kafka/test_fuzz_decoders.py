"""Every reader returns a record or a reason for 200,000 mutated records (default: fewer)."""

from __future__ import annotations

from collections import Counter

import pytest

from carpool.dead_letters.letter import read_letter, replay_output
from carpool.endings import QueryEnds
from carpool.kafka.records import Message
from carpool.kafka.sizes import record_bytes
from carpool.loop.retry import begin_us_of
from carpool.origins import attempt_of, believed, origin_of, read_query
from cli.letters import letter_json, letter_text
from schemas.answer import Answer, PartialAnswer
from schemas.batch import Batch
from schemas.cancel import Cancel
from schemas.codec import decode, encode
from schemas.deadletter import DeadLetterMark
from schemas.document import Base, DocumentVectors
from schemas.document_codec import decode_document
from schemas.errors import REASONS, RecordError
from schemas.files import FilePiece, StoredFile
from schemas.group import Group
from schemas.headers import ignored_retry_headers
from schemas.query import Query
from schemas.record import Headers, Record
from schemas.retrieval import Retrieval
from schemas.topics import (
    ANSWERS,
    BASES,
    BATCHES,
    CANCELS,
    DEAD_LETTER_MARKS,
    DOCUMENTS,
    FILE_PIECES,
    FILES,
    GROUPS,
    PARTIAL_ANSWERS,
    QUERIES,
    QUERIES_DEAD,
    RETRIES,
    RETRIEVALS,
    VECTORS,
)
from tests.clocks import NOW_US
from tests.kafka.fuzzing import HERE, Mutator, Raw, real_records
from tests.records import a_message, a_query, a_unit
from tests.seed import SEED

KINDS: dict[str, type[Record]] = {
    GROUPS.name: Group,
    RETRIEVALS.name: Retrieval,
    ANSWERS.name: Answer,
    PARTIAL_ANSWERS.name: PartialAnswer,
    CANCELS.name: Cancel,
    BATCHES.name: Batch,
    FILES.name: StoredFile,
    FILE_PIECES.name: FilePiece,
    VECTORS.name: DocumentVectors,
    BASES.name: Base,
    DEAD_LETTER_MARKS.name: DeadLetterMark,
}
REAL = real_records()
LIMITS = {topic.name: topic.max_message_bytes for topic in (ANSWERS, QUERIES_DEAD)}


def message_of(raw: Raw, topic: str = QUERIES.name) -> Message:
    return a_message(
        topic,
        HERE.offset,
        partition=HERE.partition,
        key=b"k",
        value=raw.value,
        headers=raw.headers,
        timestamp_ms=HERE.timestamp_ms,
    )


def check_query_record(raw: Raw, topic: str = QUERIES.name) -> str:
    """Decodes as the grouper does; a refused record has a letter, and an answer for its id."""
    message = believed(message_of(raw, topic))
    assert attempt_of(message.headers) >= 1
    assert begin_us_of(message, 1_000_000) <= NOW_US + 1_000_000
    if topic == QUERIES.name:
        assert (attempt_of(message.headers), origin_of(message)) == (1, message.source)
        assert begin_us_of(message, 1_000_000) == 0
    try:
        query = read_query(message)
    except RecordError as error:
        check_refusal(message, error)
        return error.reason
    assert 1 <= len(query.query_id) <= 256
    value, headers = encode(
        query, event_id=query.query_id, source="s", time_us=NOW_US, passed_on=message.headers
    )
    assert decode(Query, value, headers) == query, "what was taken can travel on"
    return "taken"


def check_refusal(message: Message, error: RecordError) -> None:
    assert error.reason in REASONS and str(error)
    unit = a_unit(1, a_query(), message)
    outputs = QueryEnds("generator").refused(unit, error, group="g", now_us=NOW_US).outputs
    letter = outputs[0]
    assert letter.value == message.value
    assert letter.headers[: len(message.headers)] == ignored_retry_headers(message.headers)
    read = read_letter(message_of(Raw(letter.value, letter.headers), QUERIES_DEAD.name))
    assert (read.reason, read.errors["offset"]) == (error.reason, str(origin_of(message).offset))
    assert [output.topic for output in outputs[1:]] == (
        [ANSWERS.name] if error.query_id is not None else []
    )
    for output in outputs:
        assert record_bytes(output.key, output.value, output.headers) <= LIMITS[output.topic]
    if len(outputs) == 2:
        answer = decode(Answer, outputs[1].value, outputs[1].headers)
        assert (answer.query_id, answer.status) == (error.query_id, "failed")


def check_internal_record(topic: str, raw: Raw) -> str:
    try:
        record = decode(KINDS[topic], raw.value, raw.headers)
    except RecordError as error:
        assert error.reason in REASONS and str(error)
        return error.reason
    encode(record, event_id="e", source="s", time_us=NOW_US)
    return "taken"


def check_document(raw: Raw) -> str:
    try:
        _, document = decode_document(b"id", raw.value, raw.headers)
    except RecordError as error:
        assert error.reason in REASONS and str(error)
        return error.reason
    if document is None:
        assert raw.value is None
        return "deleted"
    value, headers = encode(document, event_id="e", source="s", time_us=NOW_US)
    assert decode_document(b"id", value, headers)[1] == document, "what was taken can travel on"
    return "taken"


def check_letter(raw: Raw) -> str:
    """Any record of a dead-letter topic can be shown and replayed."""
    letter = read_letter(message_of(raw, QUERIES_DEAD.name))
    assert letter_text(letter).plain
    letter_json(letter)
    replayed = replay_output(letter, deadline_ms=5)
    assert replayed.topic == QUERIES.name
    assert not any(name.startswith("rag.errors.") for name, _ in replayed.headers)
    return "taken"


def check(topic: str, raw: Raw) -> str:
    if topic in (QUERIES.name, RETRIES.name):
        return check_query_record(raw, topic)
    if topic == DOCUMENTS.name:
        return check_document(raw)
    return check_letter(raw) if topic == QUERIES_DEAD.name else check_internal_record(topic, raw)


def fuzz(count: int, seed: int) -> dict[str, Counter[str]]:
    outcomes: dict[str, Counter[str]] = {topic: Counter() for topic in REAL}
    mutator = Mutator(seed)
    for number in range(count):
        topic = list(REAL)[number // 2 % len(REAL)] if number % 2 else QUERIES.name
        real = REAL[topic][number // 2 % len(REAL[topic])]
        raw = mutator.mutated(real)
        try:
            outcomes[topic][check(topic, raw)] += 1
        except Exception as error:
            raise AssertionError(f"record {number} of seed {seed} on {topic}: {raw}") from error
    return outcomes


@pytest.mark.parametrize("topic", list(REAL))
def test_the_records_are_good_before_they_are_mutated(topic: str) -> None:
    assert {check(topic, raw) for raw in REAL[topic]} == {"taken"}


def test_a_mutated_record_is_accepted_or_refused_with_a_reason() -> None:
    outcomes = fuzz(3_000, seed=SEED)
    for topic in (QUERIES.name, RETRIES.name, DOCUMENTS.name, *KINDS):
        assert len(outcomes[topic]) > 4, f"mutations of {topic} reach only {outcomes[topic]}"


@pytest.mark.long
def test_200_000_mutated_records_are_accepted_or_refused_with_a_reason() -> None:
    outcomes = fuzz(200_000, seed=SEED)
    assert sum(sum(of_topic.values()) for of_topic in outcomes.values()) == 200_000
    print({topic: dict(of_topic.most_common()) for topic, of_topic in outcomes.items()})


@pytest.mark.parametrize("name", ["traceparent", "correlation_id", "x"])
def test_an_answer_fits_its_topic_when_the_query_has_the_largest_headers(name: str) -> None:
    for size in (16_000, 20_000, 900_000, QUERIES.max_message_bytes - 300):
        check_query_record(Raw(b'{"query_id": "q", "text": "x"}', ((name, bytes(size)),)))
        check_query_record(Raw(b'{"query_id": "q"}', ((name, bytes(size)),)))


def test_a_deadline_that_would_overflow_is_refused() -> None:
    for deadline in (10**15, 2**63, 2**64 - 1, 10**30):
        assert (
            check_query_record(Raw(b'{"query_id": "q", "text": "x", "deadline": %d}' % deadline))
            != "taken"
        )
        headers: Headers = (("rag-deadline-ms", str(deadline).encode()),)
        assert check_query_record(Raw(b'{"query_id": "q", "text": "x"}', headers)) != "taken"

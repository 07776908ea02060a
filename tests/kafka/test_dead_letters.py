"""A letter fits its topic, keeps its record and reason, is selected and sent back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.dead_letters.letter import (
    DeadLetter,
    Reason,
    Selection,
    make_letter,
    read_letter,
    replay_output,
)
from carpool.kafka.admin import create_topics
from carpool.kafka.librdkafka import LibrdkafkaProducer
from carpool.kafka.records import Output
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.sizes import record_bytes
from cli.letters import letter_text
from schemas.deadletter import DeadLetterMark
from schemas.headers import ERROR_PREFIX
from schemas.record import Headers
from schemas.topics import DEAD_LETTER_EXTRA_BYTES, QUERIES, QUERIES_DEAD, TOPICS, dead_letters_of
from tests.records import a_message, a_source
from tests.waiting import WAIT_S

SOURCE = a_source(99, partition=2, timestamp_ms=1_700_000_000_000)


def a_reason(reason: str = "not_json", message: str = "no JSON") -> Reason:
    return Reason(
        group="carpool-grouper",
        stage="grouper",
        attempts=1,
        class_name=f"RecordError.{reason}",
        message=message,
    )


TOO_LARGE = a_reason("too_large", "é" * 9_000)


def letter_of(
    value: bytes | None,
    headers: Headers = (),
    *,
    key: bytes | None = b"k",
    reason: Reason | None = None,
) -> Output:
    return make_letter(
        source=SOURCE, key=key, value=value, headers=headers, reason=reason or a_reason()
    )


def read(
    output: Output, mark: DeadLetterMark | None = None, *, offset: int = 17, written_ms: int = 5
) -> DeadLetter:
    assert output.partition is not None
    message = a_message(
        output.topic,
        offset,
        partition=output.partition,
        key=output.key,
        value=output.value,
        headers=output.headers,
        timestamp_ms=written_ms,
    )
    return read_letter(message, mark)


def size(output: Output) -> int:
    return record_bytes(output.key, output.value, output.headers)


def test_a_letter_keeps_bytes_key_and_headers_and_says_why() -> None:
    headers: Headers = (("traceparent", b"00-1"), ("null", None), ("traceparent", b"00-2"))
    output = letter_of(b"\xff{", headers)
    assert (output.topic, output.partition, output.key, output.value) == (
        QUERIES_DEAD.name,
        2,
        b"k",
        b"\xff{",
    )
    letter = read(output)
    assert letter.headers == headers
    assert (letter.reason, letter.message, letter.topic) == ("not_json", "no JSON", QUERIES.name)
    assert letter.errors == {
        "topic": QUERIES.name,
        "partition": "2",
        "offset": "99",
        "timestamp": "1700000000000",
        "group": "carpool-grouper",
        "stage": "grouper",
        "attempts": "1",
        "exception.class.name": "RecordError.not_json",
        "exception.message": "no JSON",
    }
    assert letter.is_whole


@given(
    st.integers(0, 3 * QUERIES.max_message_bytes),
    st.lists(
        st.tuples(
            st.sampled_from(["a", "é" * 50, "x" * 400]),
            st.none() | st.sampled_from([0, 1, 90_000, 2_000_000]),
        ),
        max_size=40,
    ),
    st.sampled_from([0, 10, 600_000, 3_000_000]),
)
def test_a_letter_of_a_decompressed_record_of_any_size_fits_its_topic(
    value_bytes: int, sizes: list[tuple[str, int | None]], key_bytes: int
) -> None:
    headers = tuple((name, None if each is None else bytes(each)) for name, each in sizes)
    output = letter_of(bytes(value_bytes), headers, key=bytes(key_bytes), reason=TOO_LARGE)
    assert size(output) <= QUERIES_DEAD.max_message_bytes
    letter = read(output)
    is_kept = (len(letter.value), letter.headers) == (value_bytes, headers)
    assert letter.is_whole == is_kept
    assert letter.reason == "too_large"
    if record_bytes(bytes(key_bytes), bytes(value_bytes), headers) <= QUERIES.max_message_bytes:
        assert is_kept, "what its source takes is never cut"


def test_a_letter_that_was_cut_has_16_kib_and_names_the_size_of_its_record() -> None:
    letter = read(letter_of(bytes(5_000_000)))
    assert letter.errors["truncated.from.bytes"] == "5000000"
    assert letter.value == bytes(16 * 1024)


def test_a_letter_of_a_record_that_could_not_be_unpacked_is_not_replayed() -> None:
    assert not read(letter_of(None, reason=a_reason("unreadable"))).is_whole


def test_a_null_value_is_replayed_as_one_and_an_empty_value_is_none() -> None:
    letters = [read(letter_of(value)) for value in (None, b"")]
    assert [(each.is_null, each.is_whole) for each in letters] == [(True, True), (False, True)]
    assert [replay_output(each).value for each in letters] == [None, b""]
    assert "value, null" in letter_text(letters[0]).plain


def test_forged_error_headers_are_ignored() -> None:
    forged: Headers = (
        (ERROR_PREFIX + "topic", b"elsewhere"),
        (ERROR_PREFIX + "exception.class.name", b"X.forged"),
        (ERROR_PREFIX + "truncated.from.bytes", b"1"),
        ("mine", b"1"),
    )
    letter = read(letter_of(b"x", forged))
    assert (letter.reason, letter.topic, letter.is_whole, letter.headers) == (
        "not_json",
        QUERIES.name,
        True,
        (("mine", b"1"),),
    )


def test_a_record_of_another_program_is_a_letter_too() -> None:
    letter = read_letter(a_message(QUERIES_DEAD.name, value=None))
    assert (letter.reason, letter.message, letter.value, letter.errors) == ("unknown", "", b"", {})


def test_a_replayed_record_is_as_it_was_first_written() -> None:
    headers: Headers = (
        ("content-type", b"text/plain"),
        ("rag-attempt", b"3"),
        ("rag-not-before-ms", b"5"),
        ("rag-origin", b"rag.queries.v1/2/7/0"),
        ("rag-replayed-from", b"rag.queries.v1.dlq/2/3"),
        ("rag-deadline-ms", b"5"),
    )
    letter = read(letter_of(b"Who?", headers))
    again = replay_output(letter)
    assert (again.topic, again.key, again.value, again.partition) == (
        QUERIES.name,
        b"k",
        b"Who?",
        None,
    )
    assert again.headers == (
        ("content-type", b"text/plain"),
        ("rag-deadline-ms", b"5"),
        ("rag-replayed-from", b"rag.queries.v1.dlq/2/17"),
    )
    later = replay_output(letter, deadline_ms=1_000)
    assert [value for name, value in later.headers if name == "rag-deadline-ms"] == [b"1000"]


def some_letters() -> dict[str, DeadLetter]:
    done = DeadLetterMark(letter=SOURCE, action="replayed", marked_us=1)
    bad_model = a_reason("wrong_model")
    return {
        "old": read(letter_of(b"a"), offset=1, written_ms=1_000),
        "new": read(letter_of(b"b", reason=bad_model), offset=2, written_ms=9_000),
        "done": read(letter_of(b"c"), done, offset=3, written_ms=9_000),
    }


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        (Selection(), {"old", "new"}),
        (Selection(marked=True), {"old", "new", "done"}),
        (Selection(reasons=frozenset({"wrong_model"})), {"new"}),
        (Selection(since_ms=2_000), {"new"}),
        (Selection(until_ms=2_000), {"old"}),
        (
            Selection(places=frozenset({(QUERIES_DEAD.name, 2, 1), (QUERIES_DEAD.name, 2, 3)})),
            {"old"},
        ),
        (Selection(topics=frozenset({"another.dlq"})), set()),
    ],
)
def test_letters_are_selected_by(selection: Selection, names: set[str]) -> None:
    assert {name for name, letter in some_letters().items() if selection.takes(letter)} == names
    assert selection.is_narrow == (
        selection
        not in (Selection(), Selection(marked=True), Selection(topics=frozenset({"another.dlq"})))
    )


def test_a_dead_letter_topic_accepts_the_largest_record_of_its_source_with_added_headers() -> None:
    names = {topic.name: topic for topic in TOPICS}
    dead = [topic for topic in TOPICS if topic.name.endswith(".dlq")]
    assert dead
    assert dead == [dead_letters_of(names[topic.name.removesuffix(".dlq")]) for topic in dead]
    largest = Reason(
        group="g" * 255, stage="searcher", attempts=3, class_name="c" * 9_000, message="é" * 9_000
    )
    added = letter_of(b"", reason=largest)
    assert size(added) < DEAD_LETTER_EXTRA_BYTES


@pytest.mark.kafka
def test_brokers_compute_the_same_size_of_a_record_and_its_letter_fits(
    kafka_bootstrap: str,
) -> None:
    """A record at its topic's limit is accepted, one byte more is refused; letters fit whole."""
    settings = KafkaSettings(bootstrap=kafka_bootstrap)
    create_topics(settings)
    headers: Headers = tuple((f"h{number}", b"1") for number in range(20_000))
    key = bytes(300_000)
    room = QUERIES.max_message_bytes - record_bytes(key, b"", headers)
    value = bytes(room)
    while record_bytes(key, value, headers) > QUERIES.max_message_bytes:
        value = value[:-1]
    assert record_bytes(key, value + b"x", headers) == QUERIES.max_message_bytes + 1
    assert written(settings, Output(topic=QUERIES.name, key=key, value=value, headers=headers))
    assert not written(
        settings, Output(topic=QUERIES.name, key=key, value=value + b"x", headers=headers)
    )

    letter = letter_of(value, headers, key=key, reason=TOO_LARGE)
    assert letter.value == value and letter.headers[: len(headers)] == headers
    assert written(settings, letter)
    unpacked = letter_of(bytes(3_000_000), headers, key=key, reason=TOO_LARGE)
    assert written(settings, unpacked)


def written(settings: KafkaSettings, output: Output) -> bool:
    producer, reports = LibrdkafkaProducer(settings), list[object]()
    assert producer.produce(output, reports.append)
    assert producer.close(WAIT_S) == 0
    return reports == [None]

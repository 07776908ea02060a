"""The wire contract: what applications may send, what is refused and in which words, what travels
on.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import jsonschema
import msgspec
import pytest

from schemas.answer import Answer, unanswered
from schemas.codec import (
    KEY_BYTES_MAX,
    PUBLISHED_BYTES_MAX,
    decode,
    decode_query,
    encode,
    id_of_record,
    with_key,
)
from schemas.deadletter import Reason, dead_letter_headers
from schemas.errors import RecordError
from schemas.group import Group
from schemas.headers import tenant_of
from schemas.query import QUERY_BYTES_MAX, Query
from schemas.record import Headers, Source, header
from schemas.topics import ANSWERS, GROUPS, QUERIES, QUERIES_DEAD, RETRIEVALS, in_class_of, is_batch
from tests.kafka.fuzzing import places
from tests.records import a_group, a_grouped_query
from tests.scripts import load_script

FILES = load_script("docs/reference/records.py")

GOOD = b'{"query_id": "a", "text": "x"}'
ESCAPED = b'{%%b"text": "%b"}' % (rb"\ud83d\ude00" * 22_000)
"""A text of 88,000 bytes, which its escapes make three times as long."""
STRUCTURED: Headers = (("content-type", b"application/cloudevents+json"),)
HERE = Source(topic="rag.queries.v1", partition=2, offset=99, timestamp_ms=1_700_000_000_000)


def query(value: bytes | str | dict[str, Any], headers: Headers = ()) -> Query:
    if not isinstance(value, bytes):
        value = (value if isinstance(value, str) else json.dumps(value)).encode()
    return decode_query(value, headers, HERE)


def refusal(value: bytes | str | dict[str, Any], headers: Headers = ()) -> RecordError:
    with pytest.raises(RecordError) as caught:
        query(value, headers)
    return caught.value


def test_a_question_is_decoded_in_all_four_forms() -> None:
    binary = query(
        {"text": "Who?", "top_k": 3},
        (("ce_id", b"q-1"), ("ce_specversion", b"1.0"), ("content-type", b"application/json")),
    )
    structured = query(
        {
            "specversion": "1.0",
            "id": "q-1",
            "type": "rag.query.submitted",
            "source": "app",
            "data": {"text": "Who?", "top_k": 3},
        },
        (("content-type", b"application/cloudevents+json; charset=utf-8"),),
    )
    bare = query({"query_id": "q-1", "text": "Who?", "top_k": 3})
    assert binary == structured == bare
    assert query("Who was that?").text == "Who was that?"
    assert query("  7 wonders", (("content-type", b"text/plain"),)).text == "  7 wonders"
    assert query({"specversion": "1.0", "data": "Who?"}, STRUCTURED).text == "Who?"


def test_the_id_comes_from_the_header_else_the_body_else_the_place_in_the_log() -> None:
    assert query({"query_id": "body", "text": "x"}, (("ce_id", b"header"),)).query_id == "header"
    assert query({"query_id": "body", "text": "x"}).query_id == "body"
    made = query({"text": "x"}).query_id
    assert made == query("another text").query_id, "the same place gives the same id"
    assert (
        made
        != decode_query(b"x", (), Source(topic="rag.queries.v1", partition=2, offset=100)).query_id
    )


def test_headers_win_over_the_body_for_deadline_and_priority() -> None:
    found = query(
        {"text": "x", "deadline": 1, "priority": 5},
        (("rag-deadline-ms", b"17"), ("rag-priority", b"-2")),
    )
    assert (found.deadline, found.priority) == (17, -2)
    error = refusal({"query_id": "a", "text": "x"}, (("rag-deadline-ms", b"soon"),))
    assert (error.reason, error.query_id) == ("wrong_type", "a")


def test_a_vector_is_little_endian_float32_in_base64() -> None:
    vector = base64.b64encode(bytes.fromhex("0000803f000000c0")).decode()
    found = query({"vector": vector, "embedding_model": "m"})
    assert found.vector == bytes.fromhex("0000803f000000c0")


@pytest.mark.parametrize(
    ("value", "headers", "reason", "field", "query_id"),
    [
        (b"", (), "empty", None, None),
        (b"", (("ce_id", b"q"),), "empty", None, "q"),
        (b"\xff\xfe\xfa", (), "invalid_utf8", None, None),
        (b'{"text": "a\xff"}', (), "invalid_utf8", None, None),
        (b'{"text": ', (), "not_json", None, None),
        (b"hello", (("content-type", b"application/json"),), "not_json", None, None),
        (b'["text"]', (), "wrong_type", "$", None),
        (b'{"query_id": "a", "text": 7}', (), "wrong_type", "$.text", "a"),
        (b'{"query_id": "a", "text": "x", "top_k": "3"}', (), "wrong_type", "$.top_k", "a"),
        (b'{"query_id": "a", "text": "x", "bound": {"x": 1}}', (), "wrong_type", "$.bound", "a"),
        (b'{"query_id": "a", "text": "x", "top_k": 0}', (), "invalid_value", "$.top_k", "a"),
        (b'{"query_id": "a", "text": "x", "top_k": 101}', (), "invalid_value", "$.top_k", "a"),
        (b'{"query_id": "a"}', (), "missing_field", "$.text", "a"),
        (b'{"query_id": 5, "text": "x"}', (), "wrong_type", "$.query_id", None),
        (b'{"query_id": "a", "text": "\\ud800"}', (), "not_json", None, "a"),
        (b'{"query_id": "a", "filter": NaN}', (), "not_json", None, "a"),
        (b'{"query_id": "a", "filter": 1e400}', (), "not_json", None, "a"),
        (b'{"query_id": "a", "text": "tab\t"}', (), "not_json", None, "a"),
        (b'{"query_id": "a", "text": "\xff"}', (), "invalid_utf8", None, "a"),
        (b'{"query_id": "a\xff", "text": 7}', (), "invalid_utf8", None, None),
        (b'{"query_id": "\\ud800", "text": "x"}', (), "not_json", None, None),
        (b'{"query_id": "a", "top_k": ' + b"9" * 5_000 + b"}", (), "not_json", None, "a"),
        (b'{"query_id": "a", "text": "  "}', (), "invalid_value", "$.text", "a"),
        (b'{"query_id": "a", "text": "x\\u0000"}', (), "invalid_value", "$.text", "a"),
        (
            b'{"query_id": "a", "text": "x", "nprobe": 4, "recall_target": 0.9}',
            (),
            "invalid_value",
            "$.recall_target",
            "a",
        ),
        (b'{"query_id": "a", "vector": "AAAA"}', (), "invalid_value", "$.vector", "a"),
        (b'{"query_id": "a", "vector": "AACAPw=="}', (), "missing_field", "$.embedding_model", "a"),
        (b'{"query_id": "a", "vector": "%%%"}', (), "invalid_value", "$.vector", "a"),
        (
            b'{"query_id": "a", "text": "x", "generation": {"max_tokens": 0}}',
            (),
            "invalid_value",
            "$.generation.max_tokens",
            "a",
        ),
        (GOOD, (("ce_specversion", b"2.0"),), "unknown_version", None, "a"),
        (GOOD, (("ce_dataschema", b"urn:carpool:query:9"),), "unknown_version", None, "a"),
        (GOOD, (("content-type", b"image/png"),), "bad_envelope", None, "a"),
        (GOOD, (("ce_id", b"\xff"),), "bad_envelope", "ce_id", "a"),
        (b'{"id": "a", "data": {"text": "x"}}', STRUCTURED, "bad_envelope", "$.specversion", None),
        (b'{"specversion": "1.0", "id": "a"}', STRUCTURED, "missing_field", "$.data", "a"),
        (
            b'{"specversion": "1.0", "id": 1, "data": {"query_id": "b"}}',
            STRUCTURED,
            "bad_envelope",
            "$.id",
            "b",
        ),
        (b"\x00" * 900_000, (), "too_large", None, None),
        (b"\x00" * 900_000, (("ce_id", b"big"),), "too_large", None, "big"),
        (ESCAPED % b'"query_id": "a", ', (), "too_large", None, "a"),
        (ESCAPED % b"", (), "too_large", None, None),
        (b"\x00" * 100, (), "bad_envelope", None, None),
    ],
)
def test_what_is_wrong_is_named(
    value: bytes, headers: Headers, reason: str, field: str | None, query_id: str | None
) -> None:
    error = refusal(value, headers)
    assert (error.reason, error.field) == (reason, field), str(error)
    assert error.query_id == (query_id or id_of_record(HERE))


FORGED = (
    b'{"query_id": "a", "text": "x", "journal": {"root": {"query_id": "a", "text": "x"}, '
    b'"program": "hyde", "version": 1, "digest": "0"}}'
)
BIG = b'{"nodes": [%b], "edges": [{"from": "START", "to": "n"}]}' % b", ".join(
    b'{"id": "%d", "prompt": "%b"}' % (number, b"x" * 8_000) for number in range(3)
)


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (b"\x00\x00\x00\x00\x07" + GOOD, "schema registry"),
        (b"\x00\x00\x01\x86\xa0\x0eHamlet?", "schema registry"),
        (b'{"query_id": "a", "text": "x", "deadline": 1800000000}', "milliseconds"),
        (FORGED, "only services write it; publish the question with `workflow`"),
        (b'{"query_id": "a", "text": "x", "workflow": {"graph": %b}}' % BIG, "may have 16384"),
    ],
)
def test_a_common_mistake_is_named_with_its_remedy(value: bytes, remedy: str) -> None:
    error = refusal(value)
    assert remedy in str(error)
    assert error.query_id is not None


@pytest.mark.parametrize(
    "wish",
    [
        {"filter": {"lang": "en"}},
        {"tenant": "acme"},
    ],
)
def test_an_option_without_support_is_refused_by_name(
    wish: dict[str, Any],
) -> None:
    error = refusal({"query_id": "a", "text": "x", **wish})
    assert (error.reason, error.field, error.query_id) == (
        "unsupported",
        f"$.{next(iter(wish))}",
        "a",
    )


def test_a_tenant_header_is_bounded_and_asks_for_no_isolation() -> None:
    assert decode_query(b"x", (("rag-tenant", b"acme"),), HERE).tenant is None
    assert tenant_of((("rag-tenant", b"acme"),)) == "acme"
    assert tenant_of(()) == ""
    assert tenant_of((("rag-tenant", b"\xff" * 1_000),)) == "\ufffd" * 256
    assert tenant_of((("rag-tenant", None),)) == ""


def test_results_stay_in_the_class_that_the_query_was_published_in() -> None:
    assert in_class_of(QUERIES.name, GROUPS) is GROUPS
    assert in_class_of("rag.queries.batch.v1", GROUPS).name == "rag.groups.batch.v1"
    assert in_class_of("rag.groups.batch.v1", RETRIEVALS).name == "rag.retrievals.batch.v1"
    assert not is_batch(ANSWERS.name)


def test_unknown_fields_and_options_at_their_default_are_accepted() -> None:
    found = query({"text": "x", "colour": "red", "priority": 0, "filter": None})
    assert (found.text, found.priority, found.filter) == ("x", 0, None)


def test_the_largest_query_is_taken_and_one_byte_more_is_not() -> None:
    text = "x" * 60_000
    value = json.dumps({"text": text, "conversation_id": "c"}).encode()
    padded = value + b" " * (QUERY_BYTES_MAX - len(value))
    assert query(padded).text == text
    assert refusal(padded + b" ").reason == "too_large"


def test_deeply_nested_json_is_refused_not_fatal() -> None:
    assert refusal(b'{"text":' + b"[" * 100_000).reason in {"not_json", "wrong_type"}


def example_group() -> Group:
    headers = (("traceparent", b"00-a-b-01"), ("empty", None))
    return a_group(a_grouped_query(clusters=(3, 1), source=HERE, headers=headers))


def failed_answer() -> Answer:
    return unanswered(
        query_id="q",
        status="failed",
        stage="grouper",
        error_type="not_json",
        message="no",
        source=HERE,
    )


def test_internal_records_decode_to_what_was_encoded() -> None:
    group = example_group()
    value, headers = encode(
        group, event_id="e", source="carpool/grouper", time_us=1_700_000_000_123_456
    )
    assert decode(Group, value, headers) == group
    answer = failed_answer()
    assert decode(Answer, *encode(answer, event_id="e", source="s", time_us=0)) == answer
    assert dict(headers) == {
        "content-type": b"application/json",
        "ce_specversion": b"1.0",
        "ce_id": b"e",
        "ce_source": b"carpool/grouper",
        "ce_type": b"rag.group.planned",
        "ce_time": b"2023-11-14T22:13:20.123Z",
        "ce_dataschema": b"urn:carpool:group:1",
    }


@pytest.mark.parametrize("value", [b'{"query_id": "q", "text": "Why?"}', b"Why?"])
def test_a_byte_order_mark_is_no_part_of_a_query(value: bytes) -> None:
    source = Source(topic="rag.queries.v1", partition=0, offset=0, timestamp_ms=0)
    assert decode_query(b"\xef\xbb\xbf" + value, (), source) == decode_query(value, (), source)


def test_the_key_of_a_query_is_in_its_answer_unless_it_is_long_or_was_kept_before() -> None:
    own: Headers = (("correlation_id", b"c"),)
    assert with_key(own, b"customer-7") == (*own, ("rag-key", b"customer-7"))
    assert with_key(own, None) == own
    assert with_key(own, b"k" * (KEY_BYTES_MAX + 1)) == own
    retried = (("rag-key", b"customer-7"),)
    assert with_key(retried, b"q-1") == retried, "a retry is keyed by its id"
    full: Headers = (("correlation_id", b"c" * (PUBLISHED_BYTES_MAX - 20)),)
    assert with_key(full, b"customer-7") == full, "the headers of the application come first"


def test_tracing_and_reply_headers_are_passed_on_and_others_are_not() -> None:
    answer = failed_answer()
    passed = (("traceparent", b"00-a"), ("reply_to", b"me"), ("x-own", b"1"), ("ce_id", b"q"))
    _, headers = encode(answer, event_id="e", source="s", time_us=0, passed_on=passed)
    assert header(headers, "traceparent") == b"00-a"
    assert header(headers, "reply_to") == b"me"
    assert header(headers, "x-own") is None
    assert [name for name, _ in headers].count("ce_id") == 1


def test_an_internal_record_of_an_unknown_version_is_refused() -> None:
    value, headers = encode(example_group(), event_id="e", source="s", time_us=0)
    newer = tuple(
        (name, b"urn:carpool:group:2" if name == "ce_dataschema" else text)
        for name, text in headers
    )
    with pytest.raises(RecordError) as caught:
        decode(Group, value, newer)
    assert caught.value.reason == "unknown_version"


def test_the_schemas_in_the_tree_are_what_the_types_say() -> None:
    stale = [
        path.name
        for path, content in FILES.generate().items()
        if not path.is_file() or path.read_bytes() != content
    ]
    assert not stale, f"run `python docs/reference/records.py`: {stale}"


def test_every_number_of_a_record_has_its_bounds() -> None:
    kinds = [
        (holder, key) for holder, key in places([FILES.schema_of(each) for each in FILES.RECORDS])
    ]
    numbers = [holder for holder, key in kinds if holder[key] in ("integer", "number")]
    lowest = {"minimum", "exclusiveMinimum"}
    assert numbers and [each for each in numbers if not lowest & each.keys()] == []
    assert [each for each in numbers if "maximum" not in each] == []


def test_an_encoded_record_fits_its_schema() -> None:
    value, _ = encode(example_group(), event_id="e", source="s", time_us=0)
    jsonschema.validate(json.loads(value), FILES.schema_of("rag.groups.v1"))
    jsonschema.validate({"text": "x"}, FILES.schema_of("rag.queries.v1"))
    answer = failed_answer()
    jsonschema.validate(json.loads(msgspec.json.encode(answer)), FILES.schema_of("rag.answers.v1"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"text": 5}, FILES.schema_of("rag.queries.v1"))


def test_a_dead_letter_fits_its_topic_if_the_record_fit_its_own() -> None:
    long = "m" * 100_000
    reason = Reason(group="g", stage="s", attempts=1, class_name="c", message=long)
    headers = dead_letter_headers(HERE, reason)
    added = sum(len(name) + len(value or b"") for name, value in headers)
    assert QUERIES_DEAD.max_message_bytes - QUERIES.max_message_bytes > added
    assert header(headers, "rag.errors.offset") == b"99"
    assert len(header(headers, "rag.errors.exception.message") or b"") == 4_096

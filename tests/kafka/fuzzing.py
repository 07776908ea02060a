"""Bad records: good ones of every topic, mutated by a seeded generator."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from schemas.answer import AnswerError, Citation, PartialAnswer, Retrieved, Usage
from schemas.cancel import Cancel
from schemas.codec import encode
from schemas.deadletter import DeadLetterMark, Reason, dead_letter_headers
from schemas.files import FilePiece
from schemas.group import HorizonEntry, NextGroup
from schemas.query import Generation
from schemas.record import ClusterId, Headers, Record, Source
from schemas.retrieval import Probe
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
from tests.records import (
    a_base,
    a_batch,
    a_document,
    a_file,
    a_group,
    a_grouped_query,
    a_query,
    a_retrieval,
    an_answer,
    some_hits,
    some_vectors,
)

HERE = Source(topic=QUERIES.name, partition=2, offset=99, timestamp_ms=1_700_000_000_000)
VECTOR = struct.pack("<4f", 0.5, 0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Raw:
    """What travels: a value and headers."""

    value: bytes | None
    headers: Headers = ()


def real_records() -> dict[str, list[Raw]]:
    """A few good records of every topic, with all fields that they can have."""
    passed: Headers = (("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-01"), ("x", None))
    query = a_query(
        "q-1",
        "When was the Eiffel Tower built?",
        vector=VECTOR,
        embedding_model="hashing:4",
        top_k=3,
        nprobe=2,
        deadline=1_800_000_000_000,
        priority=-2,
        conversation_id="c",
        generation=Generation(max_tokens=64, temperature=0.5, seed=7),
    )
    grouped = a_grouped_query(
        query,
        (3, 1),
        source=HERE,
        headers=passed,
        vector=VECTOR,
        deadline_us=2,
        timings_us={"window_wait": 5},
    )
    group = a_group(
        grouped,
        grouped,
        next=NextGroup(query_id="q-2", clusters=(ClusterId(5),)),
        horizon=(HorizonEntry(cluster=ClusterId(5), windows=1, queries=2),),
    )
    retrieval = a_retrieval(
        query,
        some_hits(1),
        source=HERE,
        headers=passed,
        skipped_clusters=(ClusterId(2),),
        probes=(Probe(cluster=ClusterId(1), tier="ssd"),),
        timings_us={"search": 1},
    )
    answer = an_answer(
        "q-1",
        citations=(Citation(n=1, doc_id="d", title="T", start=0, end=3, score=0.5),),
        retrieved=(Retrieved(id="d", score=0.5),),
        source=HERE,
        answer="In 1889 [1].",
        usage=Usage(input_tokens=5),
        timings_ms={"total": 3.5},
        error=AnswerError(type="index_damaged", message="m", retryable=True, stage="searcher"),
    )
    why = "RecordError.not_json"
    reason = Reason(group="g", stage="grouper", attempts=1, class_name=why, message="no")
    letter = passed + dead_letter_headers(HERE, reason)

    def raw(record: Record) -> Raw:
        return Raw(*encode(record, event_id="q-1", source="s", time_us=NOW_US, passed_on=passed))

    structured = (
        b'{"specversion": "1.0", "id": "q-1", "type": "t", "source": "s", '
        b'"data": {"text": "Who?", "top_k": 3}}'
    )
    wishes: Headers = (
        ("rag-deadline-ms", b"1800000000000"),
        ("rag-priority", b"-3"),
        ("rag-tenant", b"acme"),
    )
    retried: Headers = (
        ("rag-attempt", b"2"),
        ("rag-not-before-ms", b"1700000000000"),
        ("rag-origin", b"rag.queries.v1/2/7/0"),
    )
    return {
        QUERIES.name: [
            raw(query),
            Raw(b'{"query_id": "q-1", "text": "Who?", "top_k": 3}', wishes),
            Raw(structured, (("content-type", b"application/cloudevents+json"),)),
            Raw("Où était-ce ?".encode(), (("content-type", b"text/plain"), ("ce_id", b"q-1"))),
            Raw(raw(query).value, raw(query).headers + retried),
        ],
        RETRIES.name: [Raw(raw(query).value, raw(query).headers + retried)],
        GROUPS.name: [raw(group)],
        RETRIEVALS.name: [raw(retrieval)],
        ANSWERS.name: [raw(answer)],
        PARTIAL_ANSWERS.name: [
            raw(PartialAnswer(query_id="q", generation_id="g", seq=0, text="In"))
        ],
        CANCELS.name: [raw(Cancel(query_id="q", source=HERE))],
        BATCHES.name: [raw(a_batch())],
        FILES.name: [raw(a_file())],
        FILE_PIECES.name: [raw(FilePiece(upload="u", data=b"a"))],
        DOCUMENTS.name: [
            raw(a_document()),
            Raw(b'{"text": "A text.", "metadata": {"url": "u"}}', ()),
            Raw("Où était-ce ?".encode(), (("content-type", b"text/plain"),)),
        ],
        VECTORS.name: [raw(some_vectors())],
        BASES.name: [raw(a_base())],
        DOCUMENTS.name: [
            raw(a_document()),
            Raw(b'{"text": "A text.", "metadata": {"url": "u"}}', ()),
            Raw("Où était-ce ?".encode(), (("content-type", b"text/plain"),)),
        ],
        VECTORS.name: [raw(some_vectors())],
        BASES.name: [raw(a_base())],
        QUERIES_DEAD.name: [Raw(b"{", letter)],
        DEAD_LETTER_MARKS.name: [raw(DeadLetterMark(letter=HERE, action="replayed", marked_us=5))],
    }


WHOLE_NUMBERS = (0, -1, 1, 10**18, 2**63, 2**64, 10**30, -(10**30))
TEXTS = ("", " ", "x", "\x00", "\ud800", "é" * 300, "9" * 400, "2026-11-22T10:00Z", "AAAA", "=")
CONTAINERS = ([], [[]], {}, {"a": {}}, [None], ["x"] * 30, {"query_id": 5})
STRANGE: tuple[Any, ...] = (None, True, False, 1.5, -0.0, 1e308, "NaN")
STRANGE += WHOLE_NUMBERS + TEXTS + CONTAINERS
NUMBERS = ("9" * 5_000, "0" * 50, "1" + "0" * 30 + ".5")
NUMBERS += ("1e999", "-1e999", "1e-999", "-0", "NaN", "Infinity", "0x10", "1_000")
HEADER_NAMES = (
    *("content-type", "ce_specversion", "ce_id", "ce_source", "ce_dataschema", "ce_time"),
    *("rag-deadline-ms", "rag-priority", "rag-tenant", "rag-attempt", "rag-not-before-ms"),
    *("rag-origin", "rag-replayed-from", "traceparent", "tracestate", "correlation_id"),
    *("reply_to", "rag.errors.topic", "rag.errors.offset", "rag.errors.truncated.from.bytes"),
    *("rag.errors.exception.class.name", "", "é" * 50),
)
HEADER_VALUES = (
    *(None, b"", b"\x00", b"\xff\xfe", b"x" * 300, b"c" * 5_000, "\u0663".encode()),
    *(b"application/json", b"application/cloudevents+json; charset=utf-16", b"text/plain"),
    *(b"image/png", b"1.0", b"2.0", b"urn:carpool:query:2", b"urn:carpool:group:1"),
    *(b"-1", b"9" * 18, b"9" * 40, b"1e5", b" 7 ", b"1_0", b"2", b"3"),
    *(b"rag.queries.v1/2/7/0", b"rag.queries.v1/2/7", b"../../etc/passwd", b"%s%n"),
)


class Mutator:
    """Mutates records; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._of_values: tuple[Callable[[bytes], bytes | None], ...] = (
            self._flip,
            self._cut,
            self._insert,
            self._repeat,
            self._nest,
            self._number,
            self._field,
            self._field,
            self._field,
            self._not_utf8,
            lambda value: self._rng.choice(
                (None, b"", b"null", b"[]", b"{}", b'""', b"0", b"\xef\xbb\xbf{}")
            ),
            lambda value: self._rng.randbytes(self._rng.randrange(200)),
        )

    def mutated(self, raw: Raw) -> Raw:
        """Returns the record with one to three things wrong, or none by chance."""
        value, headers = raw.value, raw.headers
        for _ in range(self._rng.randint(1, 3)):
            if self._rng.random() < 0.3:
                headers = self._headers(headers)
            elif value:
                value = self._rng.choice(self._of_values)(value)
        return Raw(value, headers)

    def _flip(self, value: bytes) -> bytes:
        changed = bytearray(value)
        for _ in range(self._rng.randint(1, 4)):
            changed[self._rng.randrange(len(changed))] ^= 1 << self._rng.randrange(8)
        return bytes(changed)

    def _cut(self, value: bytes) -> bytes:
        begin = self._rng.choice((0, self._rng.randrange(len(value))))
        return value[begin : self._rng.randrange(begin, len(value) + 1)]

    def _insert(self, value: bytes) -> bytes:
        at = self._rng.randrange(len(value) + 1)
        return (
            value[:at]
            + self._rng.choice((b"\x00", b'"', b"\\", b"{", b"}", b",", b"\\ud800", b"\\u0000"))
            + value[at:]
        )

    def _repeat(self, value: bytes) -> bytes:
        begin = self._rng.randrange(len(value))
        end = self._rng.randrange(begin, len(value) + 1)
        return value[:end] + value[begin:end] * self._rng.choice((1, 2, 20)) + value[end:]

    def _nest(self, value: bytes) -> bytes:
        depth = self._rng.choice((10, 500, 5_000))
        opening, closing = self._rng.choice(
            ((b"[", b"]"), (b'{"a":', b"}"), (b'{"filter":', b"}"), (b'{"data":', b"}"))
        )
        return (
            opening * depth
            + self._rng.choice((value, b"1", b""))
            + closing * self._rng.choice((depth, 0))
        )

    def _number(self, value: bytes) -> bytes:
        places = [at for at, byte in enumerate(value) if 48 <= byte <= 57]
        if not places:
            return value
        at = self._rng.choice(places)
        return value[:at] + self._rng.choice(NUMBERS).encode() + value[at + 1 :]

    def _not_utf8(self, value: bytes) -> bytes:
        at = self._rng.randrange(len(value) + 1)
        return (
            value[:at]
            + self._rng.choice(
                (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\x80")
            )
            + value[at:]
        )

    def _field(self, value: bytes) -> bytes:
        """Replaces, removes or adds one field, anywhere in a JSON value."""
        try:
            body = json.loads(value)
        except (ValueError, RecursionError):
            return self._flip(value)
        found = places(body)
        if not found:
            return json.dumps(self._rng.choice(STRANGE)).encode()
        holder, key = self._rng.choice(found)
        action = self._rng.random()
        if action < 0.7:
            holder[key] = self._rng.choice(STRANGE)
        elif action < 0.85:
            del holder[key]
        elif isinstance(holder, dict):
            holder[
                self._rng.choice(("query_id", "text", "data", "deadline", "unknown", "", "\ud800"))
            ] = self._rng.choice(STRANGE)
        return json.dumps(body).encode()

    def _headers(self, headers: Headers) -> Headers:
        changed = list(headers)
        pair = (self._rng.choice(HEADER_NAMES), self._rng.choice(HEADER_VALUES))
        at = self._rng.randrange(len(changed) + 1)
        action = self._rng.random()
        if action < 0.5 or not changed:
            changed.insert(at, pair)
        elif action < 0.8:
            place = self._rng.randrange(len(changed))
            changed[place] = (changed[place][0], pair[1])
        elif action < 0.9:
            del changed[self._rng.randrange(len(changed))]
        else:
            changed += [pair] * self._rng.choice((2, 100))
        return tuple(changed)


def places(body: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    found: list[tuple[Any, Any]] = []
    waiting = [body]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, dict):
            keys = list(holder)
        else:
            keys = list(range(len(holder))) if isinstance(holder, list) else []
        for key in keys:
            found.append((holder, key))
            waiting.append(holder[key])
    return found

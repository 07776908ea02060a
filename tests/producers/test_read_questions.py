"""Questions and vectors out of files, and the records made of them."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest

from carpool.errors import ConfigError, RecordError
from producers.build_query import build_record
from producers.read_questions import read_questions
from schemas.codec import decode_query
from schemas.headers import tenant_of
from schemas.query import QUERY_BYTES_MAX, Generation
from schemas.record import Source

SOURCE = Source(topic="rag.queries.v1", partition=0, offset=0)


def test_questions_come_out_of_json_lines_gzip_and_plain_text(tmp_path: Path) -> None:
    rows = [{"id": "1", "text": "who?"}, {"id": 2, "text": "where?", "metadata": {"x": 1}}]
    lines = "\n".join(json.dumps(row) for row in rows) + "\n\n"
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "a.txt").write_text("who?\n\nwhere?\n")
    for name in ("a.jsonl", "a.jsonl.gz", "a.txt"):
        assert [question.text for question in read_questions(tmp_path / name)] == ["who?", "where?"]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b'{"id": "1", "text": "ok?"}\n{"id": "2"}\n', ":2: the question has no `text`"),
        (b'{"text": "ok?"}\n\n{"text": 3}\n', ":3: not a question"),
        (b"nonsense\n", ":1: not a question"),
        (b'{"text": "\xff"}\n', ":1: not a question"),
        (b"\n\n", "has no question"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "bad.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=what):
        read_questions(tmp_path / "bad.jsonl")


def test_files_that_are_missing_or_cut_short_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "who?"}\n' * 1000)[:-20])
    for name in ("missing.jsonl", "cut.jsonl.gz"):
        with pytest.raises(ConfigError, match=name):
            read_questions(tmp_path / name)


def test_a_record_is_what_the_grouper_reads_back() -> None:
    record = build_record(
        "Who wrote Hamlet?",
        vector=np.array([0.6, 0.8]),
        embedding_model="abc",
        top_k=3,
        nprobe=5,
        priority=-2,
        generation=Generation(max_tokens=9),
        headers={"traceparent": "00-1", "x-other": "stays here"},
        deadline_ms=99,
        now_us=1,
    )
    query = decode_query(record.value, record.headers, SOURCE)
    assert (query.query_id, query.text) == (record.query_id, "Who wrote Hamlet?")
    assert (query.top_k, query.nprobe, query.priority, query.deadline) == (3, 5, -2, 99)
    assert query.vector == struct.pack("<2f", 0.6, 0.8)
    assert query.generation == Generation(max_tokens=9)
    assert dict(record.headers)["traceparent"] == b"00-1"
    assert "x-other" not in dict(record.headers)


def test_the_class_chooses_the_topic_and_a_tenant_asks_for_no_isolation() -> None:
    assert build_record("a", now_us=1, priority=3).topic == "rag.queries.v1"
    record = build_record("a", now_us=1, priority="batch", tenant="acme")
    assert record.topic == "rag.queries.batch.v1"
    assert tenant_of(record.headers) == "acme"
    query = decode_query(record.value, record.headers, SOURCE)
    assert (query.priority, query.tenant) == (0, None)


def test_each_question_without_an_id_gets_one_of_its_own() -> None:
    assert len({build_record("a", now_us=1).query_id for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("text", "arguments", "field"),
    [
        ("", {}, r"\$\.text"),
        (None, {}, r"\$\.text"),
        ("a", {"top_k": 0}, r"\$\.top_k"),
        ("a", {"nprobe": 1_000_000}, r"\$\.nprobe"),
        ("a", {"vector": b"123", "embedding_model": "m"}, r"\$\.vector"),
        ("a", {"vector": b"1234"}, r"\$\.embedding_model"),
        ("a", {"query_id": ""}, r"\$\.query_id"),
    ],
)
def test_what_the_services_would_refuse_is_refused_before_it_is_sent(
    text: str | None, arguments: dict[str, object], field: str
) -> None:
    with pytest.raises(RecordError) as refused:
        build_record(text, now_us=1, **arguments)  # type: ignore[arg-type]
    assert refused.value.field == field.replace("\\", "")


def test_text_that_is_not_well_formed_is_repaired_and_an_id_is_refused() -> None:
    half = "caf\udce9"
    record = build_record(half, now_us=1, tenant=half, headers={"traceparent": half})
    assert decode_query(record.value, record.headers, SOURCE).text == "caf\ufffd"
    assert tenant_of(record.headers) == "caf\ufffd"
    for arguments in ({"query_id": half}, {"generation": Generation(template=half)}):
        with pytest.raises(RecordError, match="half of a surrogate pair") as refused:
            build_record("a", now_us=1, **arguments)  # type: ignore[arg-type]
        assert refused.value.reason == "invalid_utf8"


def test_a_record_over_the_limit_is_refused_and_one_at_the_limit_is_not() -> None:
    with pytest.raises(RecordError, match="shorten its text") as refused:
        build_record("é" * QUERY_BYTES_MAX, now_us=1)
    assert refused.value.reason == "too_large"
    build_record("é" * 65_000, now_us=1)

"""The file of a batch, line by line, and its output."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import producers.batch.output_file as output_module
from carpool.errors import ConfigError
from producers.batch.input_file import LINE_BYTES_MAX, InputFile, open_input
from producers.batch.lines import BatchLine, kind_of, read_line
from producers.batch.output_file import OutputFile, write_ordered
from schemas.batch import AnswerLine, BatchOptions
from schemas.codec import decode
from schemas.errors import RecordError
from schemas.query import EarlierMessage, Generation, Query
from tests.cli.support import carpool


@contextmanager
def written(path: Path, waits: Callable[[str], bool] = lambda _: False) -> Iterator[OutputFile]:
    with closing(OutputFile(path)) as file:
        file.waits = waits
        assert file.begin()
        yield file


BODY = {"model": "m", "messages": [{"role": "user", "content": "who?"}]}

SYSTEM = {"role": "system", "content": "Be brief."}
EARLIER = {"role": "assistant", "content": "Yes."}

Opened = Callable[..., tuple[InputFile, list[AnswerLine]]]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Writes and opens a file of questions; returns the lines that cannot be asked, too."""
    with ExitStack() as stack:

        def opened(content: bytes, name: str = "q", **options: Any) -> Any:
            (tmp_path / name).write_bytes(content)
            errors = io.BytesIO()
            found = open_input(tmp_path / name, BatchOptions(**options), errors, lambda _: None)
            source = stack.enter_context(closing(found))
            return source, msgspec.json.Decoder(AnswerLine).decode_lines(errors.getvalue())

        yield opened


def a_line(value: dict[str, Any] | str, **options: Any) -> BatchLine:
    content = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    return read_line(kind_of(content), content, BatchOptions(**options))


def openai(**body: Any) -> dict[str, Any]:
    return {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": BODY | body}


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("who?", {}),
        ({"text": "who?", "id": 7, "top_k": 3}, {"top_k": 3}),
        ({"question": "who?", "workflow": "hyde", "answers": ["x"]}, {"workflow": "hyde"}),
        (openai(), {"generation": Generation(model="m")}),
        (openai(model="carpool/hyde"), {"workflow": "hyde"}),
        (
            openai(max_completion_tokens=9, temperature=0.5, seed=3, n=1, user="u", stop=None),
            {"generation": Generation(model="m", max_tokens=9, temperature=0.5, seed=3)},
        ),
        (
            {"url": "/v1/responses", "body": {"input": "who?", "max_output_tokens": 9}},
            {"generation": Generation(max_tokens=9)},
        ),
        (
            openai(messages=[{"role": "user", "content": [{"type": "text", "text": "who?"}]}]),
            {"generation": Generation(model="m")},
        ),
        (
            openai(model="org/m", messages=[SYSTEM, EARLIER, BODY["messages"][0]]),
            {
                "generation": Generation(model="org/m"),
                "instructions": "Be brief.",
                "messages": (EarlierMessage(role="assistant", text="Yes."),),
                "workflow": "condense",
            },
        ),
    ],
)
def test_a_line_is_text_json_or_openais(line: Any, arguments: dict[str, Any]) -> None:
    found = a_line(line)
    assert found.text == "who?"
    given = {name: value for name, value in found.arguments.items() if value is not None}
    assert given == arguments
    record = found.record("d-1", 0)
    assert decode(Query, record.value, record.headers).query_id == "d-1"
    assert record.topic == "rag.queries.batch.v1"
    assert dict(record.headers).get("correlation_id") == (
        None if found.custom_id is None else found.custom_id.encode()
    )


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ({"text": "who?", "question": "what?"}, "$.question"),
        ({"text": "who?", "filter": {"a": 1}}, "$.filter"),
        ({"text": "who?", "deadline": 5}, "$.deadline"),
        ({"text": "who?", "generation": {"max_tokens": 0}}, "$.generation"),
        ({"text": "who?", "top_k": 0}, "$.top_k"),
        ({"text": "a\0b"}, "$.text"),
        ({"text": 5}, "$.text"),
        ({"text": "x", "generation": 5}, "$.generation"),
        ({"vector": ["a"], "embedding_model": "m"}, "$.vector"),
        ({"vector": [1e300], "embedding_model": "m"}, "$.vector"),
        (openai(messages=[SYSTEM]), "$.body.messages"),
        (openai(messages=[*BODY["messages"], EARLIER]), "$.body.messages"),
        (openai(stream=True), "$.body.stream"),
        (openai(wish=1), "$.body.wish"),
        ({"url": "/v1/responses", "body": {"input": "x", "tools": [{}]}}, "$.body.tools"),
        (openai(n=2), "$.body.n"),
        (openai(tools=[{"type": "file_search"}]), "$.body.tools"),
        (openai(response_format={"type": "json_object"}), "$.body.response_format"),
        (openai(max_tokens=9, max_completion_tokens=8), "$.body.max_tokens"),
        ({"url": "/v1/embeddings", "body": {"input": "x"}}, "$.url"),
        ({"custom_id": "c", "method": "POST", "body": None}, "$.body"),
    ],
)
def test_what_cannot_be_honoured_is_named(line: Any, field: str) -> None:
    with pytest.raises(RecordError) as refused:
        a_line(line).record("d-1", 0)
    assert refused.value.field == field


def test_options_win_over_a_line_and_carpool_is_any_model() -> None:
    given = {"text": "who?", "top_k": 3, "generation": {"model": "a", "max_tokens": 5}}
    found = a_line(given, top_k=4, model="b", max_tokens=6).arguments
    assert found == {"top_k": 4, "generation": Generation(model="b", max_tokens=6)}
    assert a_line(openai(), model="carpool").arguments["generation"] is None


def test_bad_lines_are_all_named_and_the_rest_can_be_asked(opened: Opened) -> None:
    lines = [json.dumps({"custom_id": f"c{n}", "text": f"q {n}?"}).encode() for n in range(10_000)]
    bad = {10 * n + 5: content for n, content in enumerate([b'{"text": "x', b"[1]", b"{}"] * 334)}
    lines = [bad.get(number, line) for number, line in enumerate(lines, start=1)]
    source, errors = opened(b"\n".join(lines))
    assert [each.line for each in errors] == sorted(bad)[:1000]
    assert all(each.status == "refused" and each.error is not None for each in errors)
    assert (source.facts.lines, source.facts.questions) == (10_000, 9_000)
    assert source.line(10_000).text == "q 9999?", "half a last line is a line"


def test_marks_ends_of_lines_and_long_lines_make_no_difference_to_the_others(
    opened: Opened,
) -> None:
    long = b'{"text": "' + b"x" * (20 << 20) + b'"}'
    content = b"\xef\xbb\xbf" + b"\r\n".join(
        [
            b'{"text": "one?"}',
            b"",
            long,
            b'{"text": "two?"}',
            b'{"text": "one?"}',
            b'{"text": "\xff"}',
        ]
    )
    source, errors = opened(content)
    assert [(each.line, each.error.type if each.error else "") for each in errors] == [
        (3, "too_large"),
        (6, "not_json"),
    ]
    assert (source.line(1).text, source.line(4).text) == ("one?", "two?")
    assert (source.equal, list(source.blank), source.facts.size_bytes) == (1, [2], len(content))
    assert source.facts.size_bytes > LINE_BYTES_MAX


def test_a_second_line_with_an_id_is_refused(opened: Opened) -> None:
    line = b'{"custom_id": "c", "text": "who?"}'
    _, (error,) = opened(line + b"\n" + line)
    assert (error.line, error.error and error.error.message) == (
        2,
        "custom_id: an earlier line has the id 'c'",
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"text": "who?"}'.encode("utf-16"), "UTF-16"),
        (b"\n  \n", "has no question"),
        (b'{"q": 1}\n{"q": 2}', "line 1: it has no `text`. A line is JSON such as"),
    ],
)
def test_a_file_without_a_question_is_refused_with_the_reason(
    content: bytes, says: str, opened: Opened, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        opened(content)
    with pytest.raises(ConfigError, match="cannot read"):
        open_input(tmp_path / "none.jsonl", BatchOptions(), io.BytesIO(), lambda _: None)


def test_the_batch_is_another_one_with_another_option_or_another_byte(opened: Opened) -> None:
    contents = (b"who?", b"who? ", b"who?\n")
    ids = {opened(content)[0].batch_id for content in contents}
    ids |= {opened(b"who?", top_k=k)[0].batch_id for k in (1, 2)}
    assert len(ids) == 5
    assert opened(b"who?", "other name")[0].batch_id in ids


def test_a_file_that_was_changed_meanwhile_is_not_read_on(opened: Opened) -> None:
    source, _ = opened(b"who?\nwhat?")
    assert source.line(2).text == "what?"
    with source.path.open("ab") as file:
        file.write(b"\nwhere?")
    with pytest.raises(ConfigError, match="was changed"):
        source.line(2)


def test_half_a_line_is_cut_off_and_no_whole_one(tmp_path: Path) -> None:
    path, lines = tmp_path / "a.jsonl", [AnswerLine(line=n, status="ok") for n in (3, 1)]
    with written(path) as file:
        file.append(lines)
    whole = path.read_bytes()
    for half in (whole[:5], b"{", b"x" * (3 << 20)):
        path.write_bytes(whole + half)
        with written(path) as file:
            assert list(file.read()) == lines
            file.append([AnswerLine(line=2, status="failed")])
        assert path.read_bytes().startswith(whole)
        assert path.read_bytes().count(b"\n") == 3
    path.write_bytes(b"x" * 100)
    with written(path) as file:
        assert list(file.read()) == []
    path.write_bytes(b'{"other": 1}\n')
    with written(path) as file, pytest.raises(ConfigError, match="give another --out"):
        list(file.read())


def test_a_full_disk_is_waited_for_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, room, write = list[str](), [7, 0, 0, 40, 0, 10_000], os.write

    def limited(file: int, content: memoryview) -> int:
        if not (free := room.pop(0)):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, content[:free])

    monkeypatch.setattr(output_module.os, "write", limited)
    monkeypatch.setattr(output_module, "RETRY_S", 0.0)
    lines = [AnswerLine(line=n, status="ok", answer="x" * 20) for n in (1, 2)]
    with written(tmp_path / "a.jsonl", lambda why: not said.append(why)) as file:
        file.append(lines)
        assert list(file.read()) == lines
    assert len(said) == 3 and "is full" in said[0]


def test_the_ordered_output_has_the_last_answer_of_each_line_once(tmp_path: Path) -> None:
    out, errors, to = (tmp_path / name for name in ("a", "e", "o"))
    for path, lines in (
        (errors, [AnswerLine(line=2, status="refused")]),
        (
            out,
            [
                AnswerLine(line=n, status=s)
                for n, s in ((4, "ok"), (1, "failed"), (3, "ok"), (1, "ok"))
            ],
        ),
    ):
        path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    write_ordered([errors, out], to, 5)
    found = msgspec.json.Decoder(AnswerLine).decode_lines(to.read_bytes())
    assert [(line.line, line.status) for line in found] == [
        (1, "ok"),
        (2, "refused"),
        (3, "ok"),
        (4, "ok"),
    ]


def test_two_processes_do_not_write_one_output(tmp_path: Path) -> None:
    with written(tmp_path / "a.jsonl"), closing(OutputFile(tmp_path / "a.jsonl")) as second:
        second.waits = lambda _: False
        assert not second.begin()
    with written(tmp_path / "a.jsonl"):
        pass


@pytest.mark.parametrize("out", ["q.jsonl", "x/../q.jsonl", "none/a.jsonl"])
def test_an_output_that_cannot_be_is_refused_before_anything_is_done(
    out: str, tmp_path: Path
) -> None:
    (tmp_path / "x").mkdir()
    for name in ("q.jsonl", "q.errors.jsonl", "q.ordered.jsonl"):
        (tmp_path / name).write_text("who?")
        refused = carpool(f"batch run {tmp_path}/{name} --out {tmp_path}/{out} -b 127.0.0.1:1")
        assert (refused.code, "Traceback" in refused.stderr) == (2, False), refused.stderr
        assert (tmp_path / name).read_text() == "who?"

"""The model's JSON object is parsed while it is written."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator.plan.answer_text import (
    AnswerParser,
    TextReader,
    Written,
    answer_schema,
    text_regex,
    written,
    written_once,
    written_text,
)

TEXT = st.text(max_size=60)
NUMBERS = st.lists(st.integers(0, 999_999_999), max_size=5)


def read(text: str) -> AnswerParser:
    reader = AnswerParser()
    for char in text:
        reader.feed(char)
    return reader


@given(TEXT, NUMBERS, st.booleans(), st.booleans(), st.sampled_from([None, 2]))
def test_it_reads_what_a_json_encoder_wrote(
    answer: str, numbers: list[int], is_ascii: bool, numbers_first: bool, indent: int | None
) -> None:
    fields = {"answer": answer, "citations": numbers}
    value = dict(sorted(fields.items(), reverse=numbers_first))
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    reader = read(text)
    assert (reader.answer, reader.numbers) == (answer, numbers)
    assert written(text) == Written(answer=answer, numbers=tuple(numbers), is_complete=True)


@given(TEXT, st.lists(st.integers(0, 99), max_size=3), st.integers(0, 200), st.booleans())
def test_of_an_object_that_is_cut_off_it_reads_a_beginning(
    answer: str, numbers: list[int], length: int, is_ascii: bool
) -> None:
    text = json.dumps({"answer": answer, "citations": numbers}, ensure_ascii=is_ascii)
    cut = text[:length]
    got = written(cut)
    assert answer.startswith(got.answer)
    assert tuple(numbers[: len(got.numbers)]) == got.numbers
    assert got.is_complete == (length >= len(text))


@given(TEXT, NUMBERS, st.lists(st.integers(1, 20), max_size=30))
def test_the_pieces_do_not_matter_and_what_is_returned_adds_up(
    answer: str, numbers: list[int], sizes: list[int]
) -> None:
    text = json.dumps({"answer": answer, "citations": numbers})
    reader, returned, rest = AnswerParser(), "", text
    for size in sizes:
        returned += reader.feed(rest[:size])
        rest = rest[size:]
    returned += reader.feed(rest)
    assert returned == reader.answer == answer
    assert reader.numbers == numbers


def test_only_the_fields_of_the_top_level_count() -> None:
    text = (
        '{"note": "answer", "inner": {"answer": "no", "citations": [9]}, "list": ["answer", 8, '
        '[7]], "n": 6,'
        ' "answer": "yes, \\"[1]\\", {2}", "citations": [1, 2], "more": [3]}'
    )
    assert (read(text).answer, read(text).numbers) == ('yes, "[1]", {2}', [1, 2])
    assert read('{"a": {"b": {"c": 1}, "answer": "inner"}, "answer": "outer"').answer == "outer"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (r"a\n\t\"\\\/\b\f\r", 'a\n\t"\\/\b\f\r'),
        (r"\u0041\u00e9", "Aé"),
        (r"\ud83d\ude00!", "😀!"),
        (r"\uD83D\uDE00", "😀"),
        (r"\ud83dx", "\ufffdx"),
        (r"\ud83d\n", "\ufffd\n"),
        (r"\ud83d\u0041", "\ufffdA"),
        (r"\ud83d\ud83d\ude00", "\ufffd😀"),
        (r"\ude00", "\ufffd"),
        (r"\ud83d", "\ufffd"),
        (r"\q", "\ufffd"),
        (r"\u00zz!", "\ufffd!"),
        (r"\ud83d\u00zz", "\ufffd\ufffd"),
        (r"\udbff\udfff", "\U0010ffff"),
        (r"\ud800\udc00", "\U00010000"),
        (r"\ud7ff", "\ud7ff"),
        (r"\ue000", "\ue000"),
        (r"\udc00", "\ufffd"),
        (r"\udfff", "\ufffd"),
        (r"\ud800\ue000", "\ufffd\ue000"),
        (r"\ud800\ud7ff", "\ufffd\ud7ff"),
    ],
)
def test_escapes_are_decoded_and_bad_ones_replaced(raw: str, text: str) -> None:
    assert read('{"answer": "' + raw + '"').answer == text


def test_a_key_in_escapes_is_the_same_key_and_a_long_one_is_no_trouble() -> None:
    assert read('{"\\u0061nswer": "x"').answer == "x"
    assert read('{"' + "k" * 1_000 + '": "no", "answer": "x"').answer == "x"
    assert read('{"answers": "no", "xanswer": "no", "answer": "x"}').answer == "x"


def test_a_number_that_is_cut_off_does_not_count_and_one_that_is_too_long_neither() -> None:
    assert written('{"answer": "x", "citations": [1, 2').numbers == (1,)
    assert written('{"answer": "x", "citations": [1, 2]').numbers == (1, 2)
    assert written('{"answer": "x", "citations": [999999999, 1234567890, 3,').numbers == (
        999_999_999,
        3,
    )


@pytest.mark.parametrize(
    "text", ['{"answer": "x"}', '{"answer": "x", "citations": ["1"]}', '{"answer": "x"} and more']
)
def test_an_object_that_is_not_ours_is_not_complete(text: str) -> None:
    assert written(text) == Written(answer="x", numbers=(), is_complete=False)


def test_plain_text_is_kept_and_is_not_complete() -> None:
    assert written("  In 1785 [1].\n") == Written(
        answer="In 1785 [1].", numbers=(), is_complete=False
    )
    assert written("") == Written(answer="", numbers=(), is_complete=False)
    assert written('  {"answer": "a ') == Written(answer="a ", numbers=(), is_complete=False)


def test_the_schema_allows_the_numbers_of_the_passages_and_a_text_within_bounds() -> None:
    schema: Any = answer_schema((1, 2), answer_chars_max=50)
    assert list(schema["properties"]) == ["answer", "citations"], "the text is written first"
    assert schema == {
        "type": "object",
        "properties": {
            "answer": {"type": "string", "minLength": 1, "maxLength": 50},
            "citations": {
                "type": "array",
                "items": {"type": "integer", "enum": [1, 2]},
                "minItems": 1,
                "maxItems": 2,
            },
        },
        "required": ["answer", "citations"],
        "additionalProperties": False,
    }
    without: Any = answer_schema((), answer_chars_max=50)["properties"]
    assert without["citations"] == {"type": "array", "items": {"type": "integer"}, "maxItems": 0}


def test_text_that_no_encoding_has_is_read_all_the_same() -> None:
    assert written('{"answer": "x\ud800", "citations": [1]}').is_complete


@pytest.mark.parametrize(
    ("passages", "text", "fits"),
    [
        (3, "It is so. [1]", True),
        (3, "It is 6.5 m. So? [3] [1] [2]", True),
        (3, "It is so. [4]", False),
        (3, "It is so.", False),
        (3, "It is so [1]", False),
        (3, "It is\nso. [1]", False),
        (3, "It is [1] so. [1]", False),
        (3, "It is so. [1] [1] [1] [1]", False),
        (1, "It is so. [1] [1]", False),
        (12, "It is so. [12]", True),
        (0, "It is so.", True),
        (0, "It is so. [1]", False),
        (3, "One. Two. [1]", True),
        (3, "One. Two. Three. [1]", False),
        (3, "By P. G. Wodehouse in the U.S.A. and here. Two! [1]", True),
        (3, "x" * 2_000 + ". [1]", True),
    ],
)
def test_the_regular_expression_is_sentences_and_then_markers(
    passages: int, text: str, fits: bool
) -> None:
    assert bool(re.fullmatch(text_regex(range(1, passages + 1)), text)) is fits


def test_a_text_is_complete_unless_it_was_cut() -> None:
    assert written_text(" So. [1] ", is_cut=False) == Written(
        answer="So. [1]", numbers=(), is_complete=True
    )
    assert not written_text("So. [1]", is_cut=True).is_complete
    assert not written_text(" ", is_cut=False).is_complete


def test_a_text_before_a_repetition_keeps_its_whole_sentences() -> None:
    assert written_once("It is. And it") == Written(answer="It is.", numbers=(), is_complete=True)
    assert written_once(" and it ") == Written(answer="and it", numbers=(), is_complete=False)


def test_a_text_is_sent_as_it_is_written() -> None:
    reader = TextReader()
    pieces = [reader.feed(piece) for piece in (" ", " It", " is", " [1]")]
    assert pieces == ["", "It", " is", " [1]"]


def test_thoughts_before_a_text_are_taken_off() -> None:
    text = "<think>Is it?</think>\n\nIt is <b> [1]."
    assert written_text(text, is_cut=False) == Written(
        answer="It is <b> [1].", numbers=(), is_complete=True
    )
    assert not written_text("<think>Is it", is_cut=True).answer
    for cut in range(len(text)):
        reader = TextReader()
        assert reader.feed(text[:cut]) + reader.feed(text[cut:]) == "It is <b> [1]."


@pytest.mark.parametrize("before", ["", '<think>is {it} "so"?\n</think>\n\n', " <think></think>"])
@pytest.mark.parametrize(("fence", "end"), [("", ""), ("```json\n", "\n```\n"), ("```\n", "```")])
def test_thoughts_and_a_fence_around_an_object_are_taken_off(
    before: str, fence: str, end: str
) -> None:
    text = before + fence + '{"answer": "so <think> ```", "citations": [2]}' + end
    assert written(text) == Written(answer="so <think> ```", numbers=(2,), is_complete=True)
    assert read(text).answer == "so <think> ```"


def test_thoughts_are_no_answer() -> None:
    assert written("<think>hm").answer == read("<think>hm").answer == ""
    assert written("<think>hm</think> So.").answer == "So."

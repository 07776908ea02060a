"""An answer is the text that the model wrote, without its thoughts.

`free_answers.jsonl` has what SmolLM2 135M wrote for questions over Wikipedia.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from generator.plan.answer_text import TextReader, Written, written_once, written_text


class FreeAnswer(msgspec.Struct, frozen=True):
    question: str
    text: str
    end: str


FREE = msgspec.json.Decoder(FreeAnswer).decode_lines(
    Path(__file__).with_name("free_answers.jsonl").read_bytes()
)
ODD = {
    "one word": "Yes",
    "a marker in the middle": "The Times [1], which began in 1785, is based in London.",
    "markers of all kinds": "[2] It is so [1, 3]. Or not [7]; see [a] and [1785].",
    "units": "It is 6.5 m (21 ft) high.",
    "abbreviations": "By P. G. Wodehouse, e.g. in the U.S. and in approx. 3 countries, cf. No. 5.",
    "a list": "Planets:\n\n- Mercury [1]\n- Venus [2]\n    - the hottest one\n\n1. Earth\n2. Mars",
    "a table": "| year | event |\n|---|---|\n| 1785 | it begins [1] |\n| 1788 | its name [2] |",
    "code": '```python\nfirst = rows[1]\n\nprint({"first": first})  # [1]\n```',
    "an object": '{"answer": "It is so.", "citations": [1]}',
    "tags": "Write <b>so</b>, or <think>this</think> way.",
    "Chinese": "泰晤士报创刊于1785年。[1]它的总部设在伦敦。[2]",
    "Arabic": "تأسست صحيفة التايمز عام 1785 [1]. يقع مقرها في لندن، أليس كذلك؟ [2]",
}


@pytest.mark.parametrize("text", [*(each.text for each in FREE), *ODD.values()])
def test_nothing_of_a_text_is_cut_or_added_wherever_its_pieces_end(text: str) -> None:
    for cut in range(len(text)):
        reader = TextReader()
        assert reader.feed(text[:cut]) + reader.feed(text[cut:]) == text
    assert "".join(map(TextReader().feed, text)) == text
    assert written_text(text, is_cut=False).answer == text


def test_a_text_is_complete_if_it_ended_by_itself() -> None:
    assert {each.end for each in FREE} == {"stop", "length"}
    for each in FREE:
        written = written_text(each.text, is_cut=each.end == "length")
        assert written == Written(answer=each.text, is_complete=each.end == "stop")


def test_space_around_a_text_is_no_answer() -> None:
    assert written_text(" So. [1] ", is_cut=False) == Written(answer="So. [1]", is_complete=True)
    assert written_text(" \n", is_cut=False) == Written(answer="", is_complete=False)


def test_a_text_before_a_repetition_keeps_its_whole_sentences() -> None:
    assert written_once("It is. And it") == Written(answer="It is.", is_complete=True)
    assert written_once(" and it ") == Written(answer="and it", is_complete=False)


def test_a_text_is_sent_as_it_is_written() -> None:
    reader = TextReader()
    pieces = [reader.feed(piece) for piece in (" ", " It", " is", " [1]")]
    assert pieces == ["", "It", " is", " [1]"]


def test_thoughts_before_a_text_are_taken_off() -> None:
    text = "<think>Is it?</think>\n\nIt is <b> [1]."
    assert written_text(text, is_cut=False) == Written(answer="It is <b> [1].", is_complete=True)
    assert not written_text("<think>Is it", is_cut=True).answer
    for cut in range(len(text)):
        reader = TextReader()
        assert reader.feed(text[:cut]) + reader.feed(text[cut:]) == "It is <b> [1]."

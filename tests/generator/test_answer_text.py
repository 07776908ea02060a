"""An answer is the text that the model wrote, without its thoughts.

`free_answers.jsonl` has what SmolLM2 135M wrote for questions over Wikipedia.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from generator.plan.answer_text import TextReader, Written, written_once, written_text
from generator.plan.repeats import RepeatFinder


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


# ---- when an answer repeats itself, and where it is ended


def repeats_itself(text: str) -> bool:
    """The rule in one line, for a whole text: four words that occur three times."""
    words = re.findall(r"\w+(?:['’]\w+)?", text.casefold())
    grams = Counter(zip(*(words[place:] for place in range(4)), strict=False))
    return max(grams.values(), default=0) >= 3


def kept(text: str, piece_chars: int = 1_000) -> str | None:
    finder = RepeatFinder()
    for start in range(0, len(text), piece_chars):
        at = finder.feed(text[start : start + piece_chars])
        if at is not None:
            return text[:at]
    return None


def test_four_words_that_occur_for_the_third_time_are_a_repetition() -> None:
    text = "It is the king of A, and it is the king of B. Yes, it is the king of C."
    assert kept(text) == "It is the king of A, and it is the king of B. Yes, "


def test_four_words_twice_in_a_row_are_a_repetition() -> None:
    assert kept("he was born here he was born here again.") == "he was born here "


def test_case_and_punctuation_do_not_count() -> None:
    assert kept("He was born here. HE WAS: born, here! And so on") == "He was born here. "


def test_a_word_that_may_still_grow_is_not_read_yet() -> None:
    finder = RepeatFinder()
    assert finder.feed("one two three four one two three four") is None
    assert finder.feed("teen is no repetition.") is None


@pytest.mark.parametrize("text", ["", "one two", "a b c d e f g h i j k l m n o p", "a a a a "])
def test_other_texts_go_on(text: str) -> None:
    assert kept(text + " end") is None


def test_pieces_do_not_matter_and_what_is_kept_does_not_repeat_itself() -> None:
    rng = random.Random(3)
    found = 0
    for _ in range(300):
        text = " ".join(rng.choice("abc") for _ in range(30)) + " ."
        whole = kept(text)
        assert all(kept(text, size) == whole for size in (1, 2, 7))
        found += whole is not None
        assert not repeats_itself(whole if whole is not None else text)
    assert found > 100


def test_a_word_with_an_apostrophe_is_one_word_however_it_comes() -> None:
    text = "We don't know, yes. " * 2 + "End."
    whole, by_letters = RepeatFinder(), RepeatFinder()
    began_at = whole.feed(text)
    assert began_at == text.index("We", 1)
    assert next(found for letter in text if (found := by_letters.feed(letter))) == began_at

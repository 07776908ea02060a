"""When an answer repeats itself, and where it is ended."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from generator.plan.repeats import RepeatFinder


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

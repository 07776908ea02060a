"""Which sentence is quoted, and where sentences end."""

from __future__ import annotations

import pytest

from carpool.sentences import SENTENCE_CHARS_MAX, sentence_spans, whole_sentences
from generator.plan.evidence import PASSAGE_CHARS_MAX, Evidence, Sentence
from generator.plan.quote import choose_quote

TOWER = (
    "Eiffel Tower",
    "The Eiffel Tower is a tower in Paris. It was designed by the company of Gustave Eiffel. It "
    "was completed in 1889.",
)
PARIS = ("Paris", "Paris is the capital of France. It was founded in the 3rd century BC.")


def quote_of(
    question: str, *passages: tuple[str, str], chars_max: int = SENTENCE_CHARS_MAX
) -> Sentence | None:
    return choose_quote(question, Evidence(dict(enumerate(passages, 1)), chars_max=chars_max))


def quoted(question: str, *passages: tuple[str, str]) -> tuple[int, str]:
    chosen = quote_of(question, *passages)
    assert chosen is not None
    return chosen.n, passages[chosen.n - 1][1][chosen.start : chosen.end]


def test_the_sentence_that_shares_the_rare_words_of_the_question_is_quoted() -> None:
    assert quoted("When was the Eiffel Tower completed?", TOWER, PARIS) == (
        1,
        "It was completed in 1889.",
    )
    assert quoted("When was Paris founded?", TOWER, PARIS) == (
        2,
        "It was founded in the 3rd century BC.",
    )


def test_words_of_the_title_count_for_every_sentence() -> None:
    """Otherwise the first sentence, which repeats the title, would win over the right one."""
    n, text = quoted("Who designed the Eiffel Tower?", TOWER)
    assert (n, text) == (1, "It was designed by the company of Gustave Eiffel.")


def test_a_word_is_compared_by_its_beginning() -> None:
    assert quoted("Who was the designer?", TOWER)[1].startswith("It was designed")


def test_of_equal_sentences_the_one_of_the_better_passage_is_quoted() -> None:
    assert quoted("why?", ("A", "one."), ("B", "one.")) == (1, "one.")
    assert quoted("one?", ("A", "one."), ("B", "one.")) == (1, "one.")


def test_without_a_word_in_common_or_a_question_it_is_the_first_sentence() -> None:
    assert quoted("xyz", TOWER, PARIS)[1] == "The Eiffel Tower is a tower in Paris."
    assert quoted("", PARIS)[1] == "Paris is the capital of France."


@pytest.mark.parametrize("passages", [[], [("Title", "")], [("Title", " \n ")]])
def test_without_text_there_is_no_quote(passages: list[tuple[str, str]]) -> None:
    assert quote_of("why?", *passages) is None


def test_a_long_sentence_is_cut_at_a_word() -> None:
    chosen = quote_of("why?", ("T", "word " * 200), chars_max=22)
    assert chosen is not None
    assert ("word " * 200)[chosen.start : chosen.end] == "word word word word"
    chosen = quote_of("why?", ("T", "w" * 500), chars_max=22)
    assert chosen is not None and (chosen.start, chosen.end) == (0, 22)


def test_of_a_long_sentence_the_part_that_fits_is_quoted() -> None:
    text = "listen port\n" * 50 + "the timeout\n\nseconds\n" + "listen  port" * 50
    chosen = quote_of("which timeout?", ("T", text), chars_max=24)
    assert chosen is not None
    assert text[chosen.start : chosen.end] == "the timeout"


def test_only_the_beginning_of_a_long_passage_is_read() -> None:
    text = "Nothing here. " * (PASSAGE_CHARS_MAX // 14 + 1) + "The needle is here."
    assert quoted("needle?", ("T", text))[1] == "Nothing here."


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("By P. G. Wodehouse. Then.", ["By P. G. Wodehouse.", "Then."]),
        ("St. Paul (c. 5 AD) saw Dr. Who. Yes.", ["St. Paul (c. 5 AD) saw Dr. Who.", "Yes."]),
        (
            "It is 6,638.5 m high, i.e. high. \n\n“So?” he said.",
            ["It is 6,638.5 m high, i.e. high.", "“So?” he said."],
        ),
        ("  no end ", ["no end"]),
        ("", []),
    ],
)
def test_sentences_end_at_punctuation_and_not_at_initials(text: str, sentences: list[str]) -> None:
    assert [text[start:end] for start, end in sentence_spans(text)] == sentences


def test_an_unfinished_sentence_is_left_out() -> None:
    assert whole_sentences("One. Two is not") == "One."
    assert whole_sentences("He said “so.” Then") == "He said “so.”"
    assert whole_sentences("no end") == ""


def test_a_passage_that_was_found_later_must_be_clearly_better() -> None:
    words = [f"{letter}{letter}{letter}" for letter in "abcdefghijklmnopqrst"]
    nearly, whole = " ".join(words[:-1]), " ".join(words)
    quote = quote_of(whole, ("", f"{nearly}."), ("", f"{whole}."))
    assert quote is not None and quote.n == 1, "one word more is worth less than its rank"
    half = " ".join(words[:10])
    quote = quote_of(whole, ("", f"{half}."), ("", f"{whole}."))
    assert quote is not None and quote.n == 2

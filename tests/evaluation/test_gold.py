"""An answer is recognised as right or wrong."""

from __future__ import annotations

import pytest

from carpool.evaluation.gold import f1, has_gold


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("It was Ada Lovelace.", "ada lovelace"),
        ("ADA\n  LOVELACE", "Ada Lovelace"),
        ("Ada\u00a0Lovelace", "Ada Lovelace"),
        ("about 1,000 lines", "1000"),
        ("about 1000 lines", "1,000"),
        ("a 42-country coalition", "42"),
        ("born in 1879.", "1879"),
        ("on March 14, 1879", "March 14, 1879"),
        ("Pierre Me\u0301chain", "Pierre M\u00e9chain"),
        ("the \ufb02ax plant", "flax"),
        ("Die Stra\u00dfe", "STRASSE"),
        ("N. gonorrhoeae causes it", "N. gonorrhoeae"),
    ],
)
def test_an_answer_is_found_whatever_its_case_spaces_forms_and_commas(
    text: str, answer: str
) -> None:
    assert has_gold(text, [answer])


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Adam Lovelace", "Ada"),
        ("Ada, Lovelace", "Ada Lovelace"),
        ("Lovelace Ada", "Ada Lovelace"),
        ("about 1,000 lines", "1"),
        ("about 1,000 lines", "000"),
        ("1.42 metres", "42"),
        ("42.5 metres", "42"),
        ("in 18790", "1879"),
        ("", "Ada"),
        ("Ada", ""),
    ],
)
def test_part_of_a_word_or_number_is_no_answer(text: str, answer: str) -> None:
    assert not has_gold(text, [answer])


def test_any_of_the_answers_is_right_and_none_is_never_right() -> None:
    assert has_gold("the Moluccas", ["Maluku Islands", "Moluccas"])
    assert not has_gold("the Azores", ["Maluku Islands", "Moluccas"])
    assert not has_gold("the Azores", [])


def test_f1_is_of_the_words_that_an_answer_shares_with_the_nearest_gold_answer() -> None:
    assert f1("The Eiffel Tower.", ["eiffel tower", "tower"]) == 1.0
    assert f1("It is Eiffel", ["Gustave Eiffel"]) == pytest.approx(0.4)
    assert f1("nobody", ["Eiffel"]) == f1("", ["Eiffel"]) == 0.0

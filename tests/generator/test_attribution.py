"""What each sentence of an answer is cited for: its words, the model's markers, and denials.

No model of this size follows the instruction to cite, so answers of one that does are written by
hand here.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator.plan.attribution import SUPPORT_MIN, Attributed, attribute
from generator.plan.citations import CITATIONS_MAX, Citations, Cited, cite
from generator.plan.denial import denies
from generator.plan.evidence import Evidence

PASSAGES = {
    1: (
        "Neil Armstrong",
        "Neil Alden Armstrong was an American astronaut who, as the commander of the 1969 Apollo "
        "11 mission, became the first person to walk on the Moon. He was also a naval aviator, "
        "test pilot and university professor. Armstrong was born near Wapakoneta, Ohio.",
    ),
    2: (
        "Osmium",
        "Osmium is a hard, bluish-white metal. It has a density of 22.59 g/cm3 and melts at "
        "3,033 °C. It was discovered in 1803 by Smithson Tennant and William Hyde Wollaston in "
        "London. Its compound is made by the white mulberry.",
    ),
    4: ("東京", "東京は日本の首都です。人口は約1400万人です。"),
    5: ("Москва", "Москва — столица России. Она стоит на реке Москве. Основана в 1147 году."),
    6: ("Vide", ""),
}
QUESTION = "Who discovered osmium?"


def cited(answer: str, question: str = QUESTION) -> list[tuple[str, str, str]]:
    """Of each citation: whose it is and of which passage, the sentence, the quote; "" for none."""
    markers = cite(answer, passages=PASSAGES).valid
    return [shown(one, answer) for one in attribute(question, answer, markers, Evidence(PASSAGES))]


def shown(one: Attributed, answer: str) -> tuple[str, str, str]:
    by = f"{'text' if one.marker is None else 'model'} {one.n}"
    sentence = "" if one.sentence is None else answer[slice(*one.sentence)]
    if one.support is None or not one.is_supported:
        return by, sentence, ""
    assert one.support.by.n == one.n
    return by, sentence, PASSAGES[one.n][1][one.support.by.start : one.support.by.end]


FIRST = PASSAGES[1][1].partition(" He was")[0]
AVIATOR = "He was also a naval aviator, test pilot and university professor."
FOUND = "It was discovered in 1803 by Smithson Tennant and William Hyde Wollaston in London."
DENSE = "It has a density of 22.59 g/cm3 and melts at 3,033 °C."


@pytest.mark.parametrize(
    ("answer", "citations"),
    [
        ("Tennant", [("text 2", "Tennant", FOUND)]),
        ("It was Tennant.", [("text 2", "It was Tennant.", FOUND)]),
        ("It was Lavoisier.", []),
        ("Tennant found it in 1804.", []),
        ("It melts at 3033 °C.", [("text 2", "It melts at 3033 °C.", DENSE)]),
        ("It melts at 3,034 °C.", []),
        ("Its density is 22.6 g/cm3.", []),
        ("It has a density of 1803 g/cm3.", []),  # a number of another sentence
        ("It is empty.", []),
        ("Armstrong found it in 1803 in London.", []),  # a name of another passage
        ("**Density**: About 22.59 g/cm3", [("text 2", "**Density**: About 22.59 g/cm3", DENSE)]),
        (
            "According to passage 2, it was Smithson Tennant (2).",
            [("text 2", "According to passage 2, it was Smithson Tennant (2).", FOUND)],
        ),
        (
            "Armstrong was the first person to walk on the Moon in 1969. He was a test pilot.",
            [
                ("text 1", "Armstrong was the first person to walk on the Moon in 1969.", FIRST),
                ("text 1", "He was a test pilot.", AVIATOR),
            ],
        ),
        ("", []),
        ("[2]", [("model 2", "", "")]),
        ("?! —", []),
    ],
)
def test_a_sentence_is_cited_for_the_sentence_that_has_its_words_numbers_and_names(
    answer: str, citations: list[tuple[str, str, str]]
) -> None:
    assert cited(answer) == citations


@pytest.mark.parametrize(
    ("answer", "citations"),
    [
        ("Smithson Tennant found it [2].", [("model 2", "Smithson Tennant found it [2].", FOUND)]),
        ("Tennant found it. [2]", [("model 2", "Tennant found it.", FOUND)]),
        ("[2] Tennant found it.", [("model 2", "Tennant found it.", FOUND)]),
        (  # one at the end stands for all sentences, also for the second only
            "Tennant found it in London. It melts at 3,033 °C. [2]",
            [
                ("model 2", "Tennant found it in London.", FOUND),
                ("model 2", "It melts at 3,033 °C.", DENSE),
            ],
        ),
        (
            "Davy found it. It melts at 3,033 °C. [2]",
            [("model 2", "It melts at 3,033 °C.", DENSE)],
        ),
        (  # the wrong passage: the marker has no support, and Carpool finds the right one
            "Tennant found it in London [1].",
            [
                ("model 1", "Tennant found it in London [1].", ""),
                ("text 2", "Tennant found it in London [1].", FOUND),
            ],
        ),
        (
            "Tennant found it in London [2], and Neil Armstrong was a naval aviator [1, 2].",
            [
                ("model 2", "Tennant found it in London [2]", FOUND),
                ("model 1", "and Neil Armstrong was a naval aviator [1, 2].", AVIATOR),
                ("model 2", "and Neil Armstrong was a naval aviator [1, 2].", ""),
            ],
        ),
        (  # in front of what it marks
            "The answer is: [2] Smithson Tennant.",
            [("model 2", "The answer is: [2] Smithson Tennant.", FOUND)],
        ),
        (
            "[1] He was a naval aviator.\n[2] Tennant found it.",
            [
                ("model 1", "He was a naval aviator.", AVIATOR),
                ("model 2", "Tennant found it.", FOUND),
            ],
        ),
        ("Davy found it [2].", [("model 2", "Davy found it [2].", "")]),
        ("It is empty [6].", [("model 6", "It is empty [6].", "")]),
        ("Smithson Tennant [7].", [("text 2", "Smithson Tennant [7].", FOUND)]),
    ],
)
def test_the_models_markers_are_checked_and_stand_for_the_sentences_before_them(
    answer: str, citations: list[tuple[str, str, str]]
) -> None:
    assert cited(answer) == citations


@pytest.mark.parametrize(
    ("answer", "citations"),
    [
        (
            "- found by Smithson Tennant\n* aviator and pilot\n> - Davy",
            [
                ("text 2", "found by Smithson Tennant", FOUND),
                ("text 1", "aviator and pilot", AVIATOR),
            ],
        ),
        (
            "1. naval aviator and test pilot [1]\n2. found by Tennant",
            [
                ("model 1", "naval aviator and test pilot", AVIATOR),
                ("text 2", "found by Tennant", FOUND),
            ],
        ),
        (
            "| who | when |\n|---|---|\n| Smithson Tennant | 1803 |",
            [("text 2", "| Smithson Tennant | 1803 |", FOUND)],
        ),
        ("```python\nprint(osmium.melt(22))\n```", []),
        (
            "東京は日本の首都です。人口は1500万人です。",
            [("text 4", "東京は日本の首都です。", "東京は日本の首都です。")],
        ),
        ("大阪です。", []),
        (
            "Это столица России. Она основана в 1148 году.",
            [("text 5", "Это столица России.", "Москва — столица России.")],
        ),
        (
            "It was W. H. Wollaston of London, i.e. William Hyde Wollaston, in 1803.",
            [
                (
                    "text 2",
                    "It was W. H. Wollaston of London, i.e. William Hyde Wollaston, in 1803.",
                    FOUND,
                )
            ],
        ),
        ("It is 22.59 g/cm3 dense, e.g. at 20 °C.", []),
        ("It has 22.59 g/cm3 as density.", [("text 2", "It has 22.59 g/cm3 as density.", DENSE)]),
    ],
)
def test_lists_tables_code_and_other_scripts_are_read(
    answer: str, citations: list[tuple[str, str, str]]
) -> None:
    assert cited(answer) == citations


def test_of_equal_sentences_the_one_that_answers_the_question_is_quoted() -> None:
    passages = {1: ("A", "He died in Rome."), 2: ("B", "He went to Rome. He was born in Rome.")}
    (one,) = attribute("Where was he born?", "Rome", (), Evidence(passages))
    assert one.support is not None
    assert passages[one.n][1][one.support.by.start : one.support.by.end] == "He was born in Rome."


@pytest.mark.parametrize(
    "answer",
    [
        "The passages do not mention who it was [1].",
        "The passage is about Ambrose of Milan. It is not about the season 4 episode. [1]",
        "Osmium was discovered by Smithson Tennant. The passages don't say where he was born.",
        "I don't know.",
        "The provided context does not contain the answer.",
        "There is no information about this.",
        "This can't be determined from the passages.",
        "The answer is not given in the passages.",
        "The passages say nothing about it.",
        "Unfortunately, the passages don’t explicitly provide enough information.",
        "Neither passage mentions the year, and none of the passages say who.",
        "I am unable to answer from the passages.",
        "The text does not mention when Diocletian was born in Dalmatia.",
        "Based on the given context, it is unclear when he was born.",
        "The notes do not hold the answer; he was emperor from 284.",
        "The answer to this question is not available.",
        "Passage [1] does not mention it.",
        "The passages only discuss the emperor Diocletian.",
        "Not specified.",
        "no answer",
    ],
)
def test_an_answer_that_says_that_the_passages_do_not_hold_it_has_no_citation(answer: str) -> None:
    assert denies(answer) and cited(answer) == []


@pytest.mark.parametrize(
    "answer",
    [
        "The passage states that Pluto is not a planet.",
        "It was not found until 1922.",
        "It does not contain gluten, and there is no evidence of harm.",
        "He could not find work in Paris, and did not answer the king's letter.",
        "No other mammal lays eggs; it is not clear why.",
        "The document did not include a bill of rights.",
        "Doctors were unable to determine the cause of death in 1900 [1].",
        "There is no mention of Troy in Egyptian records of 1200 BC [1].",
        "Based on the passages, whales are mammals; they do not have gills [1].",
        "The name was not used in the context of religion.",
        "With the passage of time it did not cover the cost.",
    ],
)
def test_a_fact_with_a_not_is_no_denial(answer: str) -> None:
    assert not denies(answer)


WORDS = [
    "osmium",
    "Osmium",
    "Tennant",
    "1803",
    "1804",
    "3,033",
    "pilot",
    "The",
    "首都",
    "is",
    "Davy",
]


@given(
    st.lists(
        st.sampled_from([*WORDS, ". ", "\n", " ", "[1]", "[2, 4]", " [7]", "- ", "1. "]),
        max_size=30,
    )
)
def test_every_citation_is_of_a_sentence_and_has_all_its_numbers(parts: list[str]) -> None:
    answer = " ".join(parts)
    markers = cite(answer, passages=PASSAGES).valid
    found = attribute(QUESTION, answer, markers, Evidence(PASSAGES))
    assert found == attribute(QUESTION, answer, markers, Evidence(PASSAGES))
    assert {one.marker for one in found if one.marker} == set(markers) or len(
        found
    ) == CITATIONS_MAX
    for one in found:
        by, sentence, quote = shown(one, answer)
        assert sentence == sentence.strip() and "\n" not in sentence
        assert one.marker is None or by == f"model {one.marker.n}"
        if one.marker is None:
            assert quote and one.support is not None and one.support.share >= SUPPORT_MIN
        if quote:
            plain = re.sub(r"\[[\d, ]+\]", " ", sentence)
            numbers = set(re.findall(r"\d[\d,]*", plain))
            assert not numbers - set(re.findall(r"\d[\d,]*", f"{PASSAGES[one.n][0]} {quote}"))
    if not markers:
        sentences = [one.sentence for one in found]
        assert len(set(sentences)) == len(sentences)


# ---- which passages the markers of an answer name


def test_a_marker_is_cited_with_the_characters_where_it_stands() -> None:
    answer = "In 1785 [2]. It is a paper [1]."
    got = cite(answer, passages=(1, 2))
    assert got == Citations(
        valid=(Cited(n=2, start=8, end=11), Cited(n=1, start=27, end=30)), invented=()
    )
    assert [answer[cited.start : cited.end] for cited in got.valid] == ["[2]", "[1]"]


def test_a_marker_of_several_numbers_cites_each_with_the_same_characters() -> None:
    got = cite("x [1, 3; 2 ]", passages=(1, 2, 3))
    assert got.valid == tuple(Cited(n=n, start=2, end=12) for n in (1, 3, 2))


def test_a_number_that_is_written_twice_is_cited_twice() -> None:
    got = cite("[1] and [1]", passages=(1,))
    assert got.valid == (Cited(n=1, start=0, end=3), Cited(n=1, start=8, end=11))


def test_numbers_of_no_passage_are_invented_and_not_replaced() -> None:
    assert cite("x [4] [0] [2]", passages=(1, 2, 3)) == Citations(
        valid=(Cited(n=2, start=10, end=13),),
        invented=(Cited(n=4, start=2, end=5), Cited(n=0, start=6, end=9)),
    )


def test_years_words_and_empty_brackets_are_no_markers() -> None:
    for text in ("[1785]", "[a]", "[]", "[1.5]", "(1)", "[1", "1]", "[1,]", "[²]", "No idea.", ""):
        assert cite(text, passages=range(1, 1_000)) == Citations(valid=(), invented=()), text
    assert len(cite("[999]", passages=range(1, 1_000)).valid) == 1


def test_the_first_ones_are_kept() -> None:
    found = cite("[1] " * CITATIONS_MAX + "[2] [7]", passages=(1, 2, 3))
    assert {cited.n for cited in found.valid} == {1} and len(found.valid) == CITATIONS_MAX
    assert [cited.n for cited in found.invented] == [7]


@given(st.text(alphabet="[]123, ab", max_size=40), st.integers(0, 9))
def test_every_citation_was_written_by_the_model_and_is_of_a_passage(
    text: str, passages: int
) -> None:
    got = cite(text, passages=range(1, passages + 1))
    for cited in (*got.valid, *got.invented):
        marker = text[cited.start : cited.end]
        assert marker[0] == "[" and marker[-1] == "]" and str(cited.n) in re.split(r"\D+", marker)
    assert all(1 <= cited.n <= passages for cited in got.valid)
    assert not any(1 <= cited.n <= passages for cited in got.invented)

"""Which passages the markers of an answer name."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from generator.plan.citations import CITATIONS_MAX, Citations, Cited, cite


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

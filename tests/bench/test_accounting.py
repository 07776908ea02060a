"""Each question once: what is missing, what came twice, what ended otherwise."""

from __future__ import annotations

from bench.core.accounting import close_books


def test_everything_answered_once_holds() -> None:
    books = close_books(["a", "b"], ["b", "a"], {})
    assert (books.published, books.answered, books.missing, books.duplicates) == (2, 2, 0, 0)
    assert books.holds


def test_a_lost_question_a_repeated_one_and_a_failed_one_each_break_the_promise() -> None:
    assert not close_books(["a", "b"], ["a"], {}).holds
    assert not close_books(["a", "b"], ["a", "b", "b"], {}).holds
    assert not close_books(["a", "b"], ["a"], {"b": "failed"}).holds
    assert not close_books(["a"], ["a"], {"a": "expired"}).holds


def test_counts_say_what_became_of_each() -> None:
    books = close_books(
        ["a", "b", "c", "d"], ["a", "a", "a", "b", "z"], {"c": "expired", "z": "failed"}
    )
    assert (books.answered, books.missing, books.duplicates, books.foreign) == (2, 1, 2, 1)
    assert books.other == {"expired": 1}
    assert books.missing_ids == ("d",)

"""Each question once: what is missing, what came twice, what ended in another way."""

from __future__ import annotations

import pytest

from bench.core.accounting import account


@pytest.mark.parametrize(
    ("published", "received", "ended", "holds"),
    [
        ("ab", "ba", {}, True),
        ("ab", "a", {}, False),
        ("ab", "abb", {}, False),
        ("ab", "a", {"b": "failed"}, False),
        ("a", "a", {"a": "expired"}, False),
        ("a", "az", {"z": "failed"}, True),
    ],
)
def test_the_accounting_holds_when_each_question_was_answered_once(
    published: str, received: str, ended: dict[str, str], holds: bool
) -> None:
    assert account(published, received, ended).holds is holds


def test_the_counts_say_what_became_of_each_question() -> None:
    found = account("abcd", "aaabz", {"c": "expired", "z": "failed"})
    assert (found.answered, found.missing, found.duplicates) == (2, 1, 2)
    assert found.other == {"expired": 1}

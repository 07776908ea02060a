"""The figures of `carpool bench drafts`, and what it promises of them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench.generation.drafts import DraftsResult, print_drafts, promises_of, ratios
from bench.generation.real_drafts import Arm, AskedQuestion, Round


def arm(*waits_ms: float, computed: int = 1_000, warm_ups: int = 0) -> Arm:
    asked = tuple(
        AskedQuestion(
            question_id=f"q-{n}",
            status="ok",
            search_ms=1_000,
            wait_ms=wait_ms,
            input_tokens=500,
            cached_tokens=100,
        )
        for n, wait_ms in enumerate(waits_ms)
    )
    return Arm(asked=asked, computed_tokens=computed, warm_ups=warm_ups, drafts=warm_ups)


def result(
    one: tuple[Round, ...] = (), together: tuple[Round, ...] = (), as_it_is: tuple[Round, ...] = ()
) -> DraftsResult:
    return DraftsResult(
        speculation="stable", search_s=1, one_at_once=one, together=together, as_it_is=as_it_is
    )


def test_the_wait_is_a_median_over_all_rounds_and_computed_tokens_are_added() -> None:
    rounds = (
        Round(without=arm(900, 1_000), with_drafts=arm(100, 300, computed=1_100)),
        Round(without=arm(1_000), with_drafts=arm(300, computed=1_300)),
    )
    assert ratios(rounds) == (0.3, 1.2)
    assert list(promises_of(result(one=rounds)).values()) == [True, True]
    assert "0.21" in shown(result(one=rounds)) and "1.30" in shown(result(one=rounds))


@pytest.mark.parametrize(
    ("wait_ms", "computed", "kept"), [(410, 1_250, [False, True]), (400, 1_260, [True, False])]
)
def test_a_wait_or_tokens_beyond_the_bound_break_a_promise(
    wait_ms: float, computed: int, kept: list[bool]
) -> None:
    rounds = (Round(without=arm(1_000), with_drafts=arm(wait_ms, computed=computed)),)
    assert list(promises_of(result(one=rounds)).values()) == kept


def test_every_round_counts_and_a_search_of_milliseconds_warms_nothing() -> None:
    good = Round(without=arm(100), with_drafts=arm(102))
    slow = Round(without=arm(100), with_drafts=arm(103))
    warm = Round(without=arm(100), with_drafts=arm(90, warm_ups=1))
    assert all(promises_of(result(together=(good, good), as_it_is=(good,))).values())
    assert list(promises_of(result(together=(good, slow))).values()) == [False]
    assert list(promises_of(result(as_it_is=(good, warm))).values()) == [True, False]
    assert promises_of(result()) == {}


def shown(found: DraftsResult) -> str:
    text = io.StringIO()
    print_drafts(Console(file=text, width=160), found)
    return text.getvalue()

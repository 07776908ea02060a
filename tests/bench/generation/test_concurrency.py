"""The comparison of rounds, and a short backlog at a stand-in."""

from __future__ import annotations

import pytest

from bench.data.evaluation import CorpusPassage
from bench.generation.backlog import BacklogRound, run_backlog, units_of
from bench.generation.concurrency import (
    STAND_IN_PIECES_PER_S,
    ConcurrencyResult,
    knee_result,
    paired,
    promises_of,
)
from bench.generation.streams import Ask
from carpool.errors import CarpoolError
from carpool.testing.llm_server import LlmServer
from generator.settings import GeneratorSettings, LlmSettings

PASSAGES = (CorpusPassage(id="a", title="A", text="A text."), CorpusPassage(id=7, text="More."))
ASK = Ask(question="Why?", passages=(1, 0), scores=(0.9, 0.8))


def a_round(tokens: list[int], *, answers_per_s: float = 1.0, ttft: float = 1.0) -> BacklogRound:
    return BacklogRound(
        concurrency="found",
        seconds=len(tokens),
        answers=10,
        answers_per_s=answers_per_s,
        ttft_p50_s=ttft,
        ttft_p95_s=ttft,
        tokens=tuple(tokens),
        limits=(8,),
    )


def test_the_rate_is_compared_with_that_of_the_knee() -> None:
    best = 100 * STAND_IN_PIECES_PER_S
    at_knee = a_round([0] * 10 + [int(best)] * 20)
    found = a_round([10] * 30 + [int(0.94 * best)] * 30 + [int(best)] * 30)
    result = knee_result(100, at_knee, found)
    assert result.knee_tokens_per_s == best
    assert (result.found_after_s, result.share_after) == (40, 1.0)
    assert all(promises_of(ConcurrencyResult(stand_in=result, server=None)).values())


def test_a_knee_that_is_found_late_or_never_breaks_the_promise() -> None:
    best = int(100 * STAND_IN_PIECES_PER_S)
    late = knee_result(100, a_round([best]), a_round([10] * 60 + [best] * 30))
    assert late.found_after_s == 69
    never = knee_result(100, a_round([best]), a_round([10] * 90))
    assert never.found_after_s is None
    kept = [promises_of(ConcurrencyResult(stand_in=one, server=None)) for one in (late, never)]
    assert [list(each.values()) for each in kept] == [[False, True], [False, False]]


def test_rounds_are_compared_pair_by_pair() -> None:
    fixed = [a_round([1], answers_per_s=1.0), a_round([1], answers_per_s=2.0)]
    found = [a_round([1], answers_per_s=1.5), a_round([1], answers_per_s=2.6, ttft=16.0)]
    result = paired("m", fixed, found)
    assert (result.ratios, result.ratio, result.ttft_p95_s) == ((1.5, 1.3), 1.4, 16.0)
    kept = promises_of(ConcurrencyResult(stand_in=None, server=result))
    assert list(kept.values()) == [True, False]
    slow = paired("m", [a_round([1], answers_per_s=1.0)], [a_round([1], answers_per_s=1.2)])
    kept = promises_of(ConcurrencyResult(stand_in=None, server=slow))
    assert list(kept.values()) == [False, True]


def test_units_are_retrievals_with_the_passages_of_the_question() -> None:
    units = units_of([ASK], PASSAGES)
    one, other = next(units), next(units)
    assert (one.id, other.id) == (1, 2)
    assert one.record.query.text == other.record.query.text == "Why?"
    assert one.record.query.query_id != other.record.query.query_id
    assert [(hit.doc_id, hit.text) for hit in one.record.hits] == [("7", "More."), ("a", "A text.")]


def test_a_backlog_keeps_the_server_full() -> None:
    with LlmServer(tokens_per_second=50, knee=4, more_words=4) as server:
        llm = LlmSettings(base_url=server.url, model=server.model)
        settings = GeneratorSettings(concurrency=4, intake_records_max=16)
        result = run_backlog(units_of([ASK], PASSAGES), settings, llm, seconds=2)
        assert server.requests.in_flight_max == 4
    assert (result.concurrency, set(result.limits)) == ("4", {4})
    assert result.answers > 0 and sum(result.tokens) >= result.answers
    assert 0 < result.ttft_p50_s <= result.ttft_p95_s


def test_a_server_that_is_not_there_ends_the_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    monkeypatch.setattr("bench.generation.backlog.OPEN_TIMEOUT_S", 0.0)
    llm = LlmSettings(base_url="http://127.0.0.1:9/v1", model="m")
    with pytest.raises(CarpoolError, match="the generator is not ready"):
        run_backlog(units_of([ASK], PASSAGES), GeneratorSettings(), llm, seconds=1)

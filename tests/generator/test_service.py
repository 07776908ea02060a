"""The generator as a stage: its requests to the model, and the answers that it makes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

import carpool
from generator.answers import NOTHING_FOUND
from generator.llm.protocol import (
    LlmEvent,
    LlmFinished,
    LlmPiece,
    LlmRefusal,
    LlmRequest,
    PromptRefused,
)
from generator.settings import GeneratorSettings, LlmSettings
from schemas.answer import (
    Answer,
    AnswerError,
    CacheUse,
    Citation,
    InventedCitation,
    Quote,
    Retrieved,
    TextSpan,
)
from schemas.headers import TENANT_HEADER
from schemas.query import Generation
from schemas.record import ClusterId, header
from schemas.retrieval import Hit
from schemas.topics import ANSWERS, PARTIAL_ANSWERS
from tests.clocks import HandClock
from tests.generator.memory_llm import NAME as MEMORY
from tests.generator.memory_llm import MemoryLlm, Reply
from tests.generator.stage import running, unit
from tests.records import some_hits

CITED = "Because [2] [7]."


def test_an_answer_says_what_the_model_wrote_cited_and_was_given() -> None:
    with running(MemoryLlm(script=[Reply(text=CITED)])) as run:
        asked = unit()
        (answer,) = run.ask(asked)
        (done,) = run.sink.dones
    assert (answer.query_id, answer.status, answer.is_final, answer.replayed) == (
        f"q-{asked.id}",
        "ok",
        True,
        False,
    )
    assert answer.answer == "Because [2] [7]."
    assert answer.citations == (
        Citation(
            n=2,
            doc_id="d2",
            by="model",
            title="T2",
            snippet="text 2",
            start=8,
            end=11,
            sentence=TextSpan(start=0, end=16),
            support=0.0,
            score=0.8,
        ),
    )
    assert answer.grounded is False
    assert answer.invented_citations == (InventedCitation(n=7, start=12, end=15),), (
        "none is put in its place"
    )
    assert answer.quotes == (Quote(n=1, doc_id="d1", start=0, end=6, text="text 1", title="T1"),)
    assert answer.retrieved == (Retrieved(id="d1", score=0.9), Retrieved(id="d2", score=0.8))
    assert (answer.finish_reason, answer.model, answer.attempts, answer.error) == (
        "stop",
        MEMORY,
        1,
        None,
    )
    assert answer.source == asked.record.source
    assert answer.usage is not None and answer.usage.output_tokens == len(CITED.split())
    assert answer.cache == CacheUse(gpu=0, ram=1, ssd=1, bytes_read=4096, kv_hit_tokens=0)
    assert answer.provenance is not None
    assert (answer.provenance.index_version, answer.provenance.embedding_model) == ("v7", "mini")
    assert answer.provenance.software == f"carpool/{carpool.__version__}"
    assert answer.provenance.prompt_hash is not None and len(answer.provenance.prompt_hash) == 64
    (output,) = done.outputs
    assert (done.parts, output.topic, output.key, output.partition) == (
        ((asked.id, 0),),
        ANSWERS.name,
        f"q-{asked.id}".encode(),
        asked.source.partition,
    )
    event_id = f"{asked.record.source.record}/answer".encode()
    assert header(output.headers, "ce_id") == event_id
    assert header(output.headers, "ce_type") == b"rag.answer.completed"
    assert header(output.headers, "traceparent") == b"00-1"
    assert header(output.headers, "other") is None
    assert run.metric("citations_total", result="invented") == 1
    assert run.metric("citations_total", result="unsupported") == 1


def test_times_are_of_every_stage_in_milliseconds() -> None:
    with running(MemoryLlm(script=[Reply(text=CITED)]), clock=HandClock(step_us=1_000)) as run:
        (answer,) = run.ask(unit())
    times = answer.timings_ms
    assert list(times) == ["encode", "search", "queue_llm", "ttft", "decode", "total"]
    assert (times["encode"], times["search"]) == (1.5, 2.0)
    assert all(time_ms > 0 for time_ms in times.values())
    assert times["total"] >= 40 + times["queue_llm"] + times["ttft"] + times["decode"]
    assert run.metric("stage_seconds_sum", stage="total") == pytest.approx(times["total"] / 1_000)
    assert run.metric("time_to_first_token_seconds_count") == 1


def test_the_request_has_the_template_and_the_options() -> None:
    engine = MemoryLlm()
    wishes = Generation(max_tokens=50, temperature=0.5, seed=7)
    with running(engine, GeneratorSettings(max_tokens_cap=400, max_tokens=30)) as run:
        asked = unit("  who? ", query={"priority": -2, "generation": wishes})
        cut = unit(query={"generation": Generation(max_tokens=9_000)})
        run.ask(asked, cut, unit(found=some_hits(5)), unit(found=()))
    first, second, third, empty = sorted(
        engine.requests, key=lambda request: int(request.id.rpartition("/")[2])
    )
    assert first.id == f"rag.queries.v1/1/{asked.record.source.offset}"
    assert first.user == "[1] T1: text 1\n\n[2] T2: text 2\n\nQuestion: who?"
    assert first.system.startswith("Answer the question in one or two sentences")
    assert (first.max_tokens, first.temperature, first.seed, first.priority) == (50, 0.5, 7, -2)
    assert (second.max_tokens, second.temperature, second.seed, second.priority) == (
        400,
        0.0,
        None,
        0,
    )
    assert third.max_tokens == 30
    assert "[3] T3" in third.user and "T4" not in third.user, "passages_max is 3"
    (many,) = (each for each in run.sink.answers if len(each.retrieved) == 5)
    assert [each.in_prompt for each in many.retrieved] == [True] * 3 + [False] * 2
    assert "(Nothing was found.)" in empty.user


def test_pieces_of_the_answers_text_are_sent_as_they_are_written() -> None:
    text = 'It is "so"\n[1].'
    with running(MemoryLlm(script=[Reply(text=text)])) as run:
        asked = unit()
        (answer,) = run.ask(asked)
        partials = run.sink.partials()
        output = run.sink.hints[0]
    assert len(partials) > 1
    assert "".join(partial.text for partial in partials) == answer.answer == text
    assert [partial.seq for partial in partials] == list(range(len(partials)))
    assert {partial.generation_id for partial in partials} == {answer.generation_id}
    assert (output.topic, output.key) == (PARTIAL_ANSWERS.name, f"q-{asked.id}".encode())


def test_partials_can_be_switched_off() -> None:
    with running(MemoryLlm(), GeneratorSettings(partials=False)) as run:
        run.ask(unit())
        assert run.sink.hints == []


def test_a_prompt_seen_before_shows_in_the_cached_tokens_of_its_tenant() -> None:
    with running(MemoryLlm()) as run:
        run.ask(unit("same"))
        run.offer(unit("same", headers=((TENANT_HEADER, b"acme"),)))
        first, second = run.wait_for_answers(2)
    assert first.usage is not None and second.usage is not None and second.cache is not None
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens == second.cache.kv_hit_tokens == second.usage.input_tokens > 0
    assert run.tokens("computed") == run.tokens("cached", "acme") == second.usage.cached_tokens
    assert run.tokens("cached") == run.tokens("computed", "acme") == 0
    assert run.tokens("output") == first.usage.output_tokens
    assert run.tokens("output", "acme") == second.usage.output_tokens


class CountingLlm(MemoryLlm):
    """Says with each piece what it has counted so far, as vLLM does."""

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmEvent, None]:
        so_far = LlmFinished(
            finish_reason="", model="m", input_tokens=100, output_tokens=7, cached_tokens=64
        )
        async with aclosing(super().stream(request)) as events:
            async for event in events:
                yield replace(event, so_far=so_far) if isinstance(event, LlmPiece) else event


def test_an_answer_that_breaks_off_costs_the_tokens_that_the_server_had_counted() -> None:
    broken = Reply(text="It is so.", error=LlmRefusal("broken", "it failed"))
    with running(CountingLlm(script=[broken])) as run:
        (answer,) = run.ask(unit())
    assert answer.status == "ok" and answer.usage is not None
    assert run.tokens("broken") == 7
    assert run.tokens("computed") == 100 - 64
    assert run.tokens("cached") == 64 + answer.usage.cached_tokens
    assert answer.usage.cached_tokens == answer.usage.input_tokens, "it is sent again"


def answer_to(reply: Reply, settings: GeneratorSettings | None = None, **more: Any) -> Answer:
    with running(MemoryLlm(script=[reply]), settings) as run:
        (answer,) = run.ask(unit(**more))
        return answer


# ---- what is not whole is not ok


@pytest.mark.parametrize(
    ("reply", "status", "reason", "text"),
    [
        (Reply(text="Why [1]."), "ok", "stop", "Why [1]."),
        (Reply(text="Why [1]", finish_reason="length"), "partial", "length", "Why [1]"),
        (Reply(text="<think>hm", finish_reason="length"), "failed", "length", None),
        (Reply(text=" "), "failed", "stop", None),
        (Reply(text="", finish_reason="content_filter"), "failed", "content_filter", None),
    ],
)
def test_the_status_says_whether_the_text_is_whole(
    reply: Reply, status: str, reason: str, text: str | None
) -> None:
    answer = answer_to(reply)
    assert (answer.status, answer.finish_reason, answer.answer) == (status, reason, text)
    assert [citation.n for citation in answer.citations] == ([1] if text else [])
    if status == "failed":
        assert answer.error is not None and repr(reason) in answer.error.message
        assert (answer.error.type, answer.error.stage) == ("llm_refused", "generator")
        assert answer.error.retryable == (reason == "length")


def test_skipped_clusters_make_an_answer_partial_and_are_named() -> None:
    answer = answer_to(Reply(text=CITED), skipped_clusters=(ClusterId(4), ClusterId(9)))
    assert (answer.status, len(answer.citations)) == ("partial", 1)
    assert answer.error == AnswerError(
        type="index_damaged",
        message="2 clusters could not be read and were not searched (4, 9); better passages may be "
        "missing",
        retryable=True,
        stage="searcher",
    )


def test_an_answer_too_large_for_its_topic_is_failed_in_words() -> None:
    huge = unit(timings_us={f"a stage {number}": 1 for number in range(60_000)})
    with running(MemoryLlm()) as run:
        (answer,) = run.ask(huge)
        (output,) = run.sink.dones[0].outputs
    assert (answer.status, answer.error.type if answer.error else None) == ("failed", "too_large")
    assert len(output.value) < 1_000


# ---- what no model is asked


@pytest.mark.parametrize(
    ("more", "kind", "said"),
    [
        ({"text": None}, "unsupported", "text: a query with only a vector"),
        (
            {"query": {"generation": Generation(template="mine")}},
            "invalid_value",
            "no template 'mine'; there are: ",
        ),
        (
            {"query": {"generation": Generation(model="other")}},
            "unsupported",
            "asks for 'other', and this generator has the model ",
        ),
        ({"text": "x" * 20_000}, "too_large", "the question is 20000 characters"),
    ],
)
def test_a_query_without_a_prompt_is_answered_failed_even_without_a_server(
    more: dict[str, object], kind: str, said: str
) -> None:
    engine = MemoryLlm(checks=[LlmRefusal("unreachable", "down")] * 10_000)
    with running(engine, until_open=False) as run:
        run.offer(unit(**more))  # type: ignore[arg-type]
        (answer,) = run.wait_for_answers(1)
        assert run.stage.credit().records == 0
    assert answer.status == "failed" and answer.error is not None
    assert (answer.error.type, answer.error.retryable) == (kind, False)
    assert said in answer.error.message
    assert engine.requests == []
    (done,) = run.sink.dones
    assert done.failure is not None and done.failure.is_refusal, "the loop writes its dead letter"


def test_a_prompt_that_the_server_refuses_fails_alone() -> None:
    engine = MemoryLlm(script=[Reply(text="", error=PromptRefused("HTTP 400: too long"))])
    with running(engine) as run:
        run.ask(unit())
        assert run.stage.not_ready() == ()
        run.offer(unit())
        first, second = run.wait_for_answers(2)
    assert (first.status, second.status) == ("failed", "ok")
    assert first.error is not None
    assert (first.error.type, first.error.message, first.error.retryable) == (
        "llm_refused",
        "HTTP 400: too long",
        False,
    )
    assert run.metric("llm_requests_total", outcome="prompt_refused") == 1
    refused, answered = (done.failure for done in run.sink.dones)
    assert refused is not None and (refused.is_refusal, refused.is_transient) == (True, False), (
        "the loop writes its dead letter, and does not count it towards a stop"
    )
    assert answered is None


def test_without_a_language_model_a_question_needs_no_text() -> None:
    with running([], llm=LlmSettings(engine="none")) as run:
        (answer,) = run.ask(unit(None, query={"vector": b"0000", "embedding_model": "mini"}))
    assert answer.status == "ok"
    assert [passage.id for passage in answer.retrieved] == [hit.doc_id for hit in some_hits()]
    assert answer.answer == "text 1", "the quote of the first passage"


def test_an_extractive_answer_is_a_quote_and_asks_no_model() -> None:
    engine = MemoryLlm()
    hit = Hit(
        doc_id="d",
        score=0.9,
        cluster=ClusterId(1),
        title="Tower",
        text="The tower is in Paris. It was built in 1889.",
        metadata={"url": "https://a.example/tower", "topic": "Arts"},
    )
    wish = {"generation": Generation(extractive=True), "passages": True}
    with running(engine) as run:
        answer, empty = run.ask(
            unit("When was it built?", found=(hit,), query=wish), unit(found=(), query=wish)
        )
    assert engine.requests == []
    assert (answer.status, answer.answer) == ("ok", "It was built in 1889.")
    (quote,) = answer.quotes
    assert hit.text[quote.start : quote.end] == quote.text == answer.answer
    (citation,) = answer.citations
    assert (citation.url, citation.metadata) == ("https://a.example/tower", hit.metadata)
    (passage,) = answer.passages
    assert (passage.id, passage.title, passage.text) == (hit.doc_id, hit.title, hit.text)
    assert (answer.finish_reason, answer.model) == ("extractive", "none")
    assert (empty.status, empty.answer, empty.quotes) == ("ok", NOTHING_FOUND, ())


def test_an_extractive_answer_after_its_deadline_is_expired() -> None:
    with running(MemoryLlm()) as run:
        now_us = run.clock.now_us()
        wish = {"generation": Generation(extractive=True)}
        run.offer(
            unit(query=wish, deadline_us=now_us - 1), unit(query=wish, deadline_us=now_us * 2)
        )
        late, in_time = run.wait_for_answers(2)
        (_, done) = run.sink.dones
    assert (late.status, in_time.status) == ("expired", "ok")
    assert done.late is not None, "its commit may begin too late"


def test_an_answer_that_repeats_itself_is_ended_and_its_request_is_cancelled() -> None:
    engine = MemoryLlm(script=[Reply(text="It is so. " + "Then it was so here " * 40)])
    with running(engine) as run:
        (answer,) = run.ask(unit())
    assert (answer.status, answer.finish_reason) == ("ok", "repetition")
    assert answer.answer == "It is so."
    assert len(engine.cancelled) == 1
    assert answer.usage is not None and 0 < answer.usage.output_tokens < 25


def test_a_snippet_is_the_part_of_the_passage_in_the_prompt_that_fits_the_question() -> None:
    text = "some  words\n" * 200 + "The answer is here. " + "other words " * 200
    hit = Hit(doc_id="d", score=1.0, cluster=ClusterId(1), title="T", text=text)
    engine = MemoryLlm()
    with running(engine) as run:
        (answer,) = run.ask(unit("What is the answer?", found=(hit,)))
    snippet = answer.citations[0].snippet
    assert "The answer is here." in snippet and snippet in engine.requests[0].user
    assert 180 < len(snippet) <= 200


def test_a_hastened_prompt_goes_first_and_tells_the_server_its_priority() -> None:
    engine = MemoryLlm(script=[Reply(hangs_after=0)])
    with running(engine, GeneratorSettings(concurrency=1)) as run:
        first, second, third = (unit(text, query={"priority": 3}) for text in ("a", "b", "c"))
        run.offer(first)
        run.wait(lambda: len(engine.requests) == 1)
        run.offer(second, third)
        run.stage.hasten(third.id, -1, None)
        run.stage.revoke(frozenset({first.id}), frozenset())
        run.wait_for_answers(2)
    assert [request.priority for request in engine.requests] == [3, -1, 3]


def test_an_answer_has_the_key_of_its_prompt() -> None:
    with running(MemoryLlm()) as run:
        asked = unit()
        (answer,) = run.ask(asked)
        assert answer.prompt_key == run.stage.prompt_key(asked.record) is not None
        assert run.stage.prompt_key(unit(None, query={"vector": b"\0" * 4}).record) is None
    with running(MemoryLlm(), llm=LlmSettings(engine="none")) as run:
        assert run.stage.prompt_key(asked.record) is None

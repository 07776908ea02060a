"""The generator as a stage: what it asks the LLM, what it answers, what it does when either goes wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import carpool
from carpool.errors import ConfigError
from carpool.kafka.stage import Credit
from carpool.telemetry.metrics import Metrics
from carpool.testing.llm_server import Fault, LlmServer
from carpool.testing.llm_text import NAME
from generator.llm.memory import NAME as MEMORY
from generator.llm.memory import MemoryEngine, Turn
from generator.llm.none import NoneEngine
from generator.llm.openai_api import OpenAiEngine
from generator.llm.protocol import Event, LlmRefusal, LlmRequest, PromptRefused
from generator.service import build_stage
from generator.settings import GeneratorSettings, LlmSettings
from schemas.answer import Answer, AnswerError, CacheUse, Citation, Retrieved
from schemas.codec import decode
from schemas.record import ClusterId, header
from schemas.topics import ANSWERS, PARTIAL_ANSWERS
from tests.generator.stage import LLM, NOW_US, HandClock, StepClock, hits, running, unit

CITED = json.dumps({"answer": "Because [2].", "citations": [2, 1]})
HANG = Turn(text="one two three", hangs_after=1)


# ---- a question is answered


def test_an_answer_says_what_the_model_wrote_cited_and_was_given() -> None:
    with running(MemoryEngine(script=[Turn(text=CITED)])) as run:
        run.wait_until_open()
        asked = unit()
        run.offer(asked)
        (answer,) = run.wait_for_answers(1)
    assert (answer.query_id, answer.status, answer.is_final, answer.replayed) == (f"q-{asked.id}", "ok", True, False)
    assert answer.answer == "Because [2]."
    assert answer.citations == (
        Citation(n=2, doc_id="d2", title="T2", start=8, end=11, score=0.8),
        Citation(n=1, doc_id="d1", title="T1", score=0.9),
    )
    assert answer.retrieved == (Retrieved(id="d1", score=0.9), Retrieved(id="d2", score=0.8))
    assert (answer.finish_reason, answer.model, answer.attempts, answer.error) == ("stop", MEMORY, 1, None)
    assert answer.source == asked.record.source
    assert answer.usage is not None and answer.usage.output_tokens == len(CITED.split())
    assert answer.cache == CacheUse(gpu=0, ram=1, ssd=1, bytes_read=4096, kv_hit_tokens=0)
    assert answer.provenance is not None
    assert (answer.provenance.index_version, answer.provenance.embedding_model) == ("v7", "mini")
    assert answer.provenance.software == f"carpool/{carpool.__version__}"
    assert answer.provenance.prompt_hash is not None and len(answer.provenance.prompt_hash) == 64


def test_the_record_has_a_stable_id_and_carries_the_headers_of_its_query() -> None:
    with running(MemoryEngine()) as run:
        run.wait_until_open()
        asked = unit()
        run.offer(asked)
        run.wait_for_answers(1)
        (done,) = run.sink.dones
    (output,) = done.outputs
    assert done.parts == ((asked.id, 0),)
    assert (output.topic, output.key, output.partition) == (ANSWERS.name, f"q-{asked.id}".encode(), None)
    assert header(output.headers, "ce_id") == f"rag.queries.v1/1/{asked.record.source.offset}/answer".encode()
    assert header(output.headers, "ce_type") == b"rag.answer.completed"
    assert header(output.headers, "traceparent") == b"00-1"
    assert header(output.headers, "other") is None


def test_times_are_of_every_stage_in_milliseconds() -> None:
    with running(MemoryEngine(script=[Turn(text=CITED)]), clock=StepClock()) as run:
        run.wait_until_open()
        run.offer(unit())
        (answer,) = run.wait_for_answers(1)
    times = answer.timings_ms
    assert list(times) == ["encode", "search", "queue_llm", "ttft", "decode", "total"]
    assert (times["encode"], times["search"]) == (1.5, 2.0)
    assert all(time_ms > 0 for time_ms in times.values())
    assert times["total"] >= 40 + times["queue_llm"] + times["ttft"] + times["decode"]
    assert run.metric("stage_seconds_sum", stage="total") == pytest.approx(times["total"] / 1_000)
    assert run.metric("time_to_first_token_seconds_count") == 1


def test_the_model_is_asked_with_template_wishes_and_the_numbers_that_it_may_cite() -> None:
    engine = MemoryEngine()
    wishes = {"generation": {"max_tokens": 50, "temperature": 0.5, "seed": 7}, "priority": -2}
    with running(engine, GeneratorSettings(max_tokens_cap=400, max_tokens=30)) as run:
        run.wait_until_open()
        asked = unit("  who? ", query={**wishes, "generation": generation(**wishes["generation"])})  # type: ignore[arg-type]
        run.offer(asked, unit(query={"generation": generation(max_tokens=9_000)}), unit(found=hits(5)))
        run.wait_for_answers(3)
    first, second, third = sorted(engine.requests, key=lambda request: int(request.id.rpartition("/")[2]))
    assert first.id == f"rag.queries.v1/1/{asked.record.source.offset}"
    assert first.user == (
        "Passages:\n\n[1] T1: text 1\n\n[2] T2: text 2\n\nQuestion: who?\n\nAnswer in one full sentence."
    )
    assert first.system.startswith("You answer questions from numbered passages.")
    assert (first.max_tokens, first.temperature, first.seed, first.priority) == (50, 0.5, 7, -2)
    assert enum_of(first) == [1, 2]
    assert (second.max_tokens, second.temperature, second.seed, second.priority) == (400, 0.0, None, 0)
    assert third.max_tokens == 30
    assert enum_of(third) == [1, 2, 3], "passages_max is 3"


def generation(**wishes: object) -> object:
    from schemas.query import Generation

    return Generation(**wishes)  # type: ignore[arg-type]


def enum_of(request: LlmRequest) -> object:
    assert request.schema is not None
    return request.schema["properties"]["citations"]["items"]["enum"]


def test_pieces_of_the_answers_text_are_sent_as_they_are_written() -> None:
    text = json.dumps({"answer": 'It is "so"\n[1].', "citations": [1]})
    with running(MemoryEngine(script=[Turn(text=text)])) as run:
        run.wait_until_open()
        asked = unit()
        run.offer(asked)
        (answer,) = run.wait_for_answers(1)
        partials = run.sink.partials()
        output = run.sink.hints[0]
    assert len(partials) > 1
    assert "".join(partial.text for partial in partials) == answer.answer == 'It is "so"\n[1].'
    assert [partial.seq for partial in partials] == list(range(len(partials)))
    assert {partial.generation_id for partial in partials} == {answer.generation_id}
    assert (output.topic, output.key) == (PARTIAL_ANSWERS.name, f"q-{asked.id}".encode())


def test_partials_can_be_switched_off() -> None:
    with running(MemoryEngine(), GeneratorSettings(partials=False)) as run:
        run.wait_until_open()
        run.offer(unit())
        run.wait_for_answers(1)
        assert run.sink.hints == []


def test_a_prompt_seen_before_shows_in_the_cached_tokens() -> None:
    with running(MemoryEngine()) as run:
        run.wait_until_open()
        run.offer(unit("same"))
        run.wait_for_answers(1)
        run.offer(unit("same"))
        first, second = run.wait_for_answers(2)
    assert first.usage is not None and second.usage is not None and second.cache is not None
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens == second.cache.kv_hit_tokens == second.usage.input_tokens > 0
    assert run.metric("tokens_total", kind="cached") == second.usage.cached_tokens
    assert run.metric("tokens_total", kind="input") == 2 * second.usage.input_tokens


# ---- what is not whole is not ok


def answer_to(turn: Turn, settings: GeneratorSettings | None = None, **more: object) -> tuple:  # type: ignore[type-arg]
    with running(MemoryEngine(script=[turn]), settings) as run:
        run.wait_until_open()
        run.offer(unit(**more))  # type: ignore[arg-type]
        (answer,) = run.wait_for_answers(1)
        return answer, run


def test_an_object_that_was_cut_off_is_partial_and_its_text_is_kept() -> None:
    answer, _ = answer_to(Turn(text='{"answer": "Because [1] and', finish_reason="length"))
    assert (answer.status, answer.finish_reason) == ("partial", "length")
    assert answer.answer == "Because [1] and"
    assert [citation.n for citation in answer.citations] == [1]


def test_a_text_that_fills_its_bound_was_cut_there() -> None:
    text = json.dumps({"answer": "x" * 40, "citations": [1]})
    answer, _ = answer_to(Turn(text=text), GeneratorSettings(max_tokens=20))
    assert (answer.status, answer.finish_reason, len(answer.citations)) == ("partial", "length", 1)
    text = json.dumps({"answer": "x" * 39, "citations": [1]})
    answer, _ = answer_to(Turn(text=text), GeneratorSettings(max_tokens=20))
    assert (answer.status, answer.finish_reason) == ("ok", "stop")


def test_plain_text_of_a_server_without_structured_output_is_partial() -> None:
    answer, _ = answer_to(Turn(text="Because [2]."))
    assert (answer.status, answer.answer, answer.finish_reason) == ("partial", "Because [2].", "stop")
    assert [(citation.n, citation.start) for citation in answer.citations] == [(2, 8)]


@pytest.mark.parametrize(
    ("text", "reason", "retryable"),
    [('{"ans', "length", True), ('{"answer": " ", "citations": []}', "stop", False), ("", "content_filter", False)],
)
def test_no_text_at_all_is_failed_with_a_reason(text: str, reason: str, retryable: bool) -> None:
    answer, _ = answer_to(Turn(text=text, finish_reason=reason))
    assert (answer.status, answer.answer, answer.citations) == ("failed", None, ())
    assert answer.error is not None
    assert (answer.error.type, answer.error.retryable, answer.error.stage) == ("llm_refused", retryable, "generator")
    assert repr(reason) in answer.error.message


def test_numbers_of_no_passage_are_dropped_and_counted_and_none_is_put_in_their_place() -> None:
    text = json.dumps({"answer": "Because [7].", "citations": [9]})
    answer, run = answer_to(Turn(text=text))
    assert (answer.answer, answer.citations, answer.status) == ("Because [7].", (), "ok")
    assert run.metric("citations_total", result="dropped") == 2
    assert run.metric("citations_total", result="valid") == 0


def test_skipped_clusters_make_an_answer_partial_and_are_named() -> None:
    answer, _ = answer_to(Turn(text=CITED), skipped_clusters=(ClusterId(4), ClusterId(9)))
    assert (answer.status, answer.answer, len(answer.citations)) == ("partial", "Because [2].", 2)
    assert answer.error == AnswerError(
        type="index_damaged",
        message="2 clusters could not be read and were not searched (4, 9); better passages may be missing",
        retryable=True,
        stage="searcher",
    )


def test_where_nothing_was_found_the_model_is_told_and_can_cite_nothing() -> None:
    engine = MemoryEngine()
    with running(engine) as run:
        run.wait_until_open()
        run.offer(unit(found=()))
        (answer,) = run.wait_for_answers(1)
    assert (answer.status, answer.citations, answer.retrieved) == ("ok", (), ())
    assert "(Nothing was found.)" in engine.requests[0].user
    assert engine.requests[0].schema is not None
    assert engine.requests[0].schema["properties"]["citations"]["maxItems"] == 0


def test_an_answer_too_large_for_its_topic_is_failed_in_words() -> None:
    huge = unit(timings_us={f"a stage {number}": 1 for number in range(60_000)})
    with running(MemoryEngine()) as run:
        run.wait_until_open()
        run.offer(huge)
        (answer,) = run.wait_for_answers(1)
        (output,) = run.sink.dones[0].outputs
    assert (answer.status, answer.error.type if answer.error else None) == ("failed", "too_large")
    assert len(output.value) < 1_000


# ---- what no model is asked


@pytest.mark.parametrize(
    ("more", "kind", "said"),
    [
        ({"text": None}, "unsupported", "text: a query with only a vector"),
        (
            {"query": {"generation": generation(template="mine")}},
            "invalid_value",
            "no template 'mine'; there are: cited",
        ),
        ({"text": "x" * 20_000}, "too_large", "the question is 20000 characters"),
    ],
)
def test_what_cannot_be_asked_is_answered_failed_at_once_even_without_a_server(
    more: dict[str, object], kind: str, said: str
) -> None:
    engine = MemoryEngine(checks=[LlmRefusal("unreachable", "down")] * 10_000)
    with running(engine) as run:
        run.offer(unit(**more))  # type: ignore[arg-type]
        (answer,) = run.wait_for_answers(1)
        assert run.stage.credit().records == 0
    assert answer.status == "failed" and answer.error is not None
    assert (answer.error.type, answer.error.retryable) == (kind, False)
    assert said in answer.error.message
    assert engine.requests == []
    assert run.metric("answers_total", stage="generator", status="failed") == 1


def test_a_prompt_that_the_server_refuses_fails_alone() -> None:
    engine = MemoryEngine(script=[Turn(text="", error=PromptRefused("HTTP 400: too long"))])
    with running(engine) as run:
        run.wait_until_open()
        run.offer(unit())
        run.wait_for_answers(1)
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


# ---- a server that refuses


def test_nothing_is_taken_before_the_server_has_answered_and_the_reason_is_told() -> None:
    down = LlmRefusal("unreachable", "it cannot be reached (refused); is it running?")
    clock = HandClock()
    with running(MemoryEngine(checks=[down, None]), clock=clock) as run:
        reason = "LLM server at memory refuses: it cannot be reached (refused); is it running?"
        run.wait(lambda: list(run.stage.not_ready()) == [reason])
        assert run.stage.credit() == Credit(records=0, size_bytes=64 * 1024 * 1024)
        wake_us = run.tick()
        assert wake_us == clock.at_us + 1_000, "the pause is over after backoff_ms_min"
        clock.at_us = wake_us
        run.wait_until_open()
        assert run.stage.credit().records == 64
    assert run.metric("llm_requests_total", outcome="unreachable") == 1


def test_a_refusing_server_stops_the_intake_keeps_what_is_in_hand_and_is_asked_again() -> None:
    busy = Turn(text="", error=LlmRefusal("busy", "it takes no more work now", retry_after_s=3))
    clock = HandClock()
    with running(MemoryEngine(script=[busy]), clock=clock) as run:
        run.wait_until_open()
        asked = unit()
        run.offer(asked)
        run.wait(lambda: bool(run.stage.not_ready()))
        assert list(run.stage.not_ready()) == ["LLM server at memory refuses: it takes no more work now"]
        assert run.stage.credit().records == 0
        assert run.sink.dones == []
        clock.at_us = NOW_US + 2_999_999
        run.tick()
        assert run.stage.not_ready()
        clock.at_us = NOW_US + 3_000_000
        (answer,) = run.wait_for_answers(1)
        assert run.stage.not_ready() == ()
        assert run.stage.credit().records == 64
    assert (answer.status, answer.attempts, answer.query_id) == ("ok", 2, f"q-{asked.id}")
    assert answer.timings_ms["queue_llm"] == 3_000


def test_each_try_is_a_generation_of_its_own() -> None:
    broken = Turn(text='{"answer": "Half', error=LlmRefusal("broken", "it broke off"))
    with running(MemoryEngine(script=[broken])) as run:
        run.wait_until_open()
        run.offer(unit())
        (answer,) = run.wait_for_answers(1)
        partials = run.sink.partials()
    by_id: dict[str, list[int]] = {}
    for partial in partials:
        by_id.setdefault(partial.generation_id, []).append(partial.seq)
    assert len(by_id) == 2
    assert all(seqs == list(range(len(seqs))) for seqs in by_id.values())
    assert list(by_id)[-1] == answer.generation_id


def test_a_query_over_which_the_server_breaks_off_again_and_again_is_failed_while_others_are_answered() -> None:
    class Picky(MemoryEngine):
        async def stream(self, request: LlmRequest) -> AsyncGenerator[Event, None]:
            if "poison" in request.user:
                raise LlmRefusal("broken", "it failed (HTTP 500)")
            async for event in super().stream(request):
                yield event

    llm = LlmSettings(backoff_ms_min=100, backoff_ms_max=100, failures_max=2)
    answered = 0
    with running(Picky(), llm=llm) as run:
        run.wait_until_open()
        run.offer(unit("poison"))
        while not any(answer.status == "failed" for answer in run.sink.answers):
            run.offer(unit("fine"))
            answered += 1
            run.wait(lambda: sum(answer.status == "ok" for answer in run.sink.answers) == answered)  # noqa: B023
            run.wait(lambda: run.stage.credit().records > 0)
        answers = run.wait_for_answers(answered + 1)
    (failed,) = (answer for answer in answers if answer.status == "failed")
    assert failed.error is not None and failed.attempts >= 3
    assert (failed.error.type, failed.error.retryable) == ("llm_refused", True)
    assert "it failed (HTTP 500)" in failed.error.message
    (failure,) = (done.failure for done in run.sink.dones if done.failure)
    assert (failure.query.query_id, failure.is_transient) == (failed.query_id, True), "the loop may send it round again"
    assert sum(answer.status == "ok" for answer in answers) == answered


def test_an_engine_that_fails_unforeseen_ends_the_service_and_loses_nothing() -> None:
    class Buggy(MemoryEngine):
        def stream(self, request: LlmRequest):  # type: ignore[no-untyped-def]
            raise ZeroDivisionError("oops")

    with pytest.raises(AssertionError, match="ZeroDivisionError: oops"), running(Buggy()) as run:
        run.wait_until_open()
        run.offer(unit())
        run.wait(lambda: run.sink.failure is not None)
        assert run.sink.dones == []


# ---- deadlines, bounds, revocation, the end


def test_a_running_query_whose_deadline_passes_is_cancelled_and_answered_expired() -> None:
    engine, clock = MemoryEngine(script=[HANG]), HandClock()
    with running(engine, clock=clock) as run:
        run.wait_until_open()
        asked = unit(deadline_us=NOW_US + 1_000_000)
        run.offer(asked)
        run.wait(lambda: run.metric("time_to_first_token_seconds_count") == 1)
        assert run.tick() == NOW_US + 50_000
        clock.at_us = NOW_US + 1_000_000
        (answer,) = run.wait_for_answers(1)
        run.wait(lambda: bool(engine.cancelled))
    assert (answer.status, answer.answer, answer.attempts) == ("expired", None, 1)
    assert answer.error is not None and (answer.error.type, answer.error.retryable) == ("expired", True)
    assert answer.timings_ms["total"] == 1_040
    assert engine.cancelled == [f"rag.queries.v1/1/{asked.record.source.offset}"]
    assert run.metric("llm_requests_total", outcome="cancelled") == 1
    assert run.metric("llm_requests_in_flight") == 0


def test_an_answer_in_time_whose_commit_begins_after_the_deadline_is_written_as_expired() -> None:
    with running(MemoryEngine()) as run:
        run.wait_until_open()
        run.offer(unit(deadline_us=NOW_US + 60_000_000))
        (answer,) = run.wait_for_answers(1)
        (done,) = run.sink.dones
    assert answer.status == "ok"
    assert done.outputs_at(NOW_US + 59_999_999) == done.outputs
    (late,) = done.outputs_at(NOW_US + 60_000_000)
    assert decode(Answer, late.value, late.headers).status == "expired"
    assert (late.key, late.topic) == (done.outputs[0].key, done.outputs[0].topic)


def test_a_query_that_comes_late_is_expired_unasked_and_its_own_deadline_counts_without_another() -> None:
    engine = MemoryEngine()
    with running(engine, clock=HandClock()) as run:
        run.wait_until_open()
        run.offer(unit(deadline_us=NOW_US), unit(query={"deadline": NOW_US // 1_000 - 1}))
        answers = run.wait_for_answers(2)
    assert [answer.status for answer in answers] == ["expired", "expired"]
    assert engine.requests == []


def test_concurrency_and_intake_are_bounded_in_records_and_bytes() -> None:
    engine = MemoryEngine(script=[HANG] * 10)
    settings = GeneratorSettings(concurrency=2, intake_records_max=4, intake_bytes_max=4 * 1024 * 1024)
    with running(engine, settings) as run:
        run.wait_until_open()
        assert run.stage.credit() == Credit(records=4, size_bytes=4 * 1024 * 1024)
        units = [unit() for _ in range(3)]
        run.offer(*units)
        run.wait(lambda: run.metric("time_to_first_token_seconds_count") == 2)
        held_bytes = sum(one.message.size_bytes for one in units)
        assert run.stage.credit() == Credit(records=1, size_bytes=4 * 1024 * 1024 - held_bytes)
        assert len(engine.requests) == 2
        assert run.metric("llm_requests_in_flight") == 2
        run.stage.revoke(frozenset(one.id for one in units))
        assert run.stage.credit() == Credit(records=4, size_bytes=4 * 1024 * 1024)


def test_revoked_queries_are_broken_off_and_never_answered() -> None:
    engine = MemoryEngine(script=[HANG])
    with running(engine, GeneratorSettings(concurrency=1, intake_records_max=9)) as run:
        run.wait_until_open()
        hanging, waiting, other = unit(), unit(), unit()
        run.offer(hanging, waiting)
        run.wait(lambda: len(engine.requests) == 1)
        run.stage.revoke(frozenset({hanging.id, waiting.id}))
        run.offer(other)
        (answer,) = run.wait_for_answers(1)
        run.wait(lambda: bool(engine.cancelled))
    assert answer.query_id == f"q-{other.id}"
    assert [request.id.rpartition("/")[2] for request in engine.requests] == [
        str(one.record.source.offset) for one in (hanging, other)
    ]


def test_draining_takes_nothing_more_and_finishes_what_is_in_hand() -> None:
    with running(MemoryEngine(), GeneratorSettings(concurrency=1, intake_records_max=9)) as run:
        run.wait_until_open()
        run.offer(*(unit() for _ in range(5)))
        run.stage.drain(run.clock.now_us() + 10_000_000)
        assert run.stage.credit() == Credit(records=0, size_bytes=0)
        assert len(run.wait_for_answers(5)) == 5


def test_closing_breaks_off_what_runs_and_can_be_done_twice_or_before_the_start() -> None:
    engine = MemoryEngine(script=[HANG])
    with running(engine) as run:
        run.wait_until_open()
        run.offer(unit())
        run.wait(lambda: len(engine.requests) == 1)
        run.stage.close()
        assert len(engine.cancelled) == 1
        run.stage.close()
        assert run.sink.dones == []
    build_stage(GeneratorSettings(), LlmSettings(), Metrics(CollectorRegistry()), HandClock()).close()


def test_an_idle_stage_with_an_open_server_asks_for_no_tick() -> None:
    with running(MemoryEngine(), clock=HandClock()) as run:
        run.wait_until_open()
        assert run.tick() is None


# ---- wiring


def test_a_template_that_cannot_be_used_stops_the_start_with_what_to_do(tmp_path: Path) -> None:
    metrics = Metrics(CollectorRegistry())
    for settings, said in (
        (GeneratorSettings(template="mine"), "no prompt template 'mine' in .*, only: cited"),
        (GeneratorSettings(template_dir=str(tmp_path)), "only: none"),
        (GeneratorSettings(template_dir=str(tmp_path / "gone")), "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=said):
            build_stage(settings, LLM, metrics, HandClock())
    (tmp_path / "cited.txt").write_text("[system]\nx\n")
    with pytest.raises(ConfigError, match=r"section \[user\] is missing"):
        build_stage(GeneratorSettings(template_dir=str(tmp_path)), LLM, metrics, HandClock())


def test_a_folder_of_templates_can_be_ones_own_and_a_query_chooses_among_them(tmp_path: Path) -> None:
    body = "[user]\n{{passages}} {{question}}\n[passage]\n[{{n}}] {{title}} {{text}}\n[nothing_found]\nnone\n"
    (tmp_path / "a.txt").write_text(f"[system]\nI am A.\n{body}")
    (tmp_path / "b.txt").write_text(f"[system]\nI am B.\n{body}")
    (tmp_path / "notes.md").write_text("no template")
    engine = MemoryEngine()
    with running(engine, GeneratorSettings(template="a", template_dir=str(tmp_path), concurrency=1)) as run:
        run.wait_until_open()
        run.offer(unit(), unit(query={"generation": generation(template="b")}))
        run.wait_for_answers(2)
    assert [request.system for request in engine.requests] == ["I am A.", "I am B."]


def test_without_a_model_every_answer_says_so() -> None:
    with running(NoneEngine()) as run:
        run.wait_until_open()
        run.offer(unit())
        (answer,) = run.wait_for_answers(1)
    assert (answer.status, answer.model, answer.citations) == ("ok", "none", ())
    assert answer.answer is not None and "No language model" in answer.answer
    assert len(answer.retrieved) == 2


# ---- over HTTP, against the stand-in


def served(server: LlmServer) -> LlmSettings:
    return LlmSettings(base_url=server.url, model=server.model, backoff_ms_min=5, backoff_ms_max=20)


def test_many_questions_are_answered_once_each_by_a_server_that_fails_now_and_then() -> None:
    with LlmServer() as server, running(OpenAiEngine(served(server)), llm=served(server)) as run:
        run.wait_until_open()
        units = [unit(f"question {index}") for index in range(40)]
        for index, one in enumerate(units):
            run.wait(lambda: run.stage.credit().records > 0)
            if index % 10 != 5:
                run.offer(one)
                continue
            mode = ("429", "503", "reset", "garbage")[index // 10]
            server.fault = Fault(mode=mode, count=1, after_tokens=index // 10 % 3)  # type: ignore[arg-type]
            run.offer(one)
            run.wait(lambda: server.requests.faulted == index // 10 + 1)  # noqa: B023
        answers = run.wait_for_answers(len(units))
        requests = server.requests
    assert sorted(answer.query_id for answer in answers) == sorted(f"q-{one.id}" for one in units)
    assert {answer.status for answer in answers} == {"ok"}
    assert all(NAME in (answer.answer or "") and answer.citations for answer in answers)
    assert (requests.faulted, requests.started) == (4, 44)
    assert set(requests.completed_by_id.values()) == {1}
    assert len(requests.completed_by_id) == 40


def test_a_server_that_goes_away_and_comes_back_costs_no_query() -> None:
    with LlmServer() as first:
        port = first.port
        llm = served(first)
        engine = OpenAiEngine(llm)
        with running(engine, llm=llm) as run:
            run.wait_until_open()
            run.offer(unit())
            run.wait_for_answers(1)
            first.__exit__()
            run.offer(unit(), unit())
            run.wait(lambda: bool(run.stage.not_ready()))
            assert f"LLM server at http://127.0.0.1:{port}/v1 refuses: " in run.stage.not_ready()[0]
            assert run.stage.credit().records == 0
            with LlmServer(port=port):
                answers = run.wait_for_answers(3)
    assert [answer.status for answer in answers] == ["ok"] * 3


def test_an_expired_query_ends_its_request_at_the_server() -> None:
    with LlmServer() as server, running(OpenAiEngine(served(server)), clock=(clock := HandClock())) as run:
        run.wait_until_open()
        server.fault = Fault(mode="hang", after_tokens=1)
        run.offer(unit(deadline_us=NOW_US + 1))
        run.wait(lambda: run.metric("time_to_first_token_seconds_count") == 1)
        clock.at_us = NOW_US + 1
        (answer,) = run.wait_for_answers(1)
        assert answer.status == "expired"
        run.wait(lambda: server.requests.in_flight == 0)
        assert server.requests.disconnected == 1


def test_the_thread_ends_with_the_stage() -> None:
    before = set(threading.enumerate())
    with running(MemoryEngine()) as run:
        run.wait_until_open()
    assert set(threading.enumerate()) <= before

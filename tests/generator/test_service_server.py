"""The generator as a stage: failing servers, deadlines, credit, revocation, closing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from structlog.typing import EventDict

from carpool.errors import ConfigError
from carpool.loop.stage import Credit
from carpool.telemetry.metrics import Metrics
from generator.llm.protocol import LlmEvent, LlmFinished, LlmRefusal, LlmRequest
from generator.service import INTAKE_BYTES_MAX, build_stage
from generator.settings import GeneratorSettings, LlmSettings
from schemas.answer import Answer
from schemas.codec import decode
from schemas.query import Generation
from schemas.topics import QUERIES_BATCH
from tests.clocks import NOW_US, HandClock
from tests.generator.memory_llm import MemoryLlm, Reply
from tests.generator.stage import LLM, running, unit
from tests.records import a_source

HANG = Reply(text="one two three", hangs_after=1)


def test_nothing_is_taken_before_the_server_answers_and_readiness_says_why() -> None:
    down = LlmRefusal("unreachable", "it cannot be reached (refused); is it running?")
    clock = HandClock()
    engines = [MemoryLlm(checks=[down]), MemoryLlm(checks=[down] * 2)]
    with running(engines, clock=clock, until_open=False) as run:
        reason = "LLM server at memory refuses: it cannot be reached (refused); is it running?"
        run.wait(lambda: list(run.stage.not_ready()) == [reason] * 2)
        assert run.stage.credit() == Credit(records=0, size_bytes=64 * 1024 * 1024)
        wake_us = run.tick()
        assert wake_us == clock.time_us + 1_000, "the pause is over"
        clock.time_us = wake_us
        run.wait_until_open()
        assert run.stage.credit().records == 128
    assert run.metric("llm_requests_total", outcome="unreachable") >= 2


def test_a_refusing_server_stops_the_intake_and_keeps_the_queries_in_progress() -> None:
    busy = Reply(text="", error=LlmRefusal("busy", "it takes no more work now", retry_after_s=3))
    clock = HandClock()
    with running(MemoryLlm(script=[busy], canaries=[busy.error]), clock=clock) as run:
        asked = unit()
        run.offer(asked)
        run.wait(lambda: bool(run.stage.not_ready()))
        assert list(run.stage.not_ready()) == [
            "LLM server at memory refuses: it takes no more work now"
        ]
        assert run.stage.credit().records == 0
        assert run.sink.dones == []
        clock.time_us = NOW_US + 2_999_999
        run.tick()
        assert run.stage.not_ready()
        clock.time_us = NOW_US + 3_000_000
        (answer,) = run.wait_for_answers(1)
        assert run.stage.not_ready() == ()
        assert run.stage.credit().records == 64
        assert run.metric("llm_requests_total", outcome="canary") == 1
    assert (answer.status, answer.attempts, answer.query_id) == ("ok", 2, f"q-{asked.id}")
    assert answer.timings_ms["queue_llm"] == 3_000


def test_each_try_has_its_own_generation_id() -> None:
    broken = Reply(text='{"answer": "Half', error=LlmRefusal("broken", "it broke off"))
    with running(MemoryLlm(script=[broken])) as run:
        (answer,) = run.ask(unit())
        partials = run.sink.partials()
    by_id: dict[str, list[int]] = {}
    for partial in partials:
        by_id.setdefault(partial.generation_id, []).append(partial.seq)
    assert len(by_id) == 2
    assert all(seqs == list(range(len(seqs))) for seqs in by_id.values())
    assert list(by_id)[-1] == answer.generation_id


def test_the_end_waits_for_answers_in_progress_and_not_for_a_refusing_server() -> None:
    busy = Reply(text="", error=LlmRefusal("busy", "it takes no more work now", retry_after_s=60))
    with running(MemoryLlm(script=[HANG, busy], canaries=[busy.error] * 99)) as run:
        run.offer(unit())
        run.wait(lambda: run.metric("llm_requests_in_flight") == 1)
        refused = unit()
        run.offer(refused)
        run.wait(lambda: bool(run.stage.not_ready()))
        run.stage.drain(NOW_US + 30_000_000)
        assert run.stage.credit() == Credit(records=0, size_bytes=0)
        assert run.stage.not_ready() == (), "one answer is in progress"
        run.stage.revoke(frozenset({refused.id - 1}), frozenset())
        assert run.stage.not_ready(), "nothing is in progress"


@pytest.fixture
def logs() -> Iterator[list[EventDict]]:
    """The log, which is not printed: tracebacks with all variables take seconds."""
    with capture_logs() as logs:
        yield logs


class Unreadable(MemoryLlm):
    """Its first three answers cannot be used, in whatever way: `fails` at a prompt."""

    def __init__(self, fails: str = "", **more: Any) -> None:
        super().__init__(**more)
        self.fails, self.left = fails, 3

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmEvent, None]:
        async for event in super().stream(request):
            if self.left and self.fails in request.user and isinstance(event, LlmFinished):
                self.left -= 1
                raise ZeroDivisionError("oops")
            yield event


@pytest.mark.usefixtures("logs")
def test_an_error_in_whole_answers_of_a_server_that_answers_others_ends_the_question() -> None:
    engine = Unreadable("poison")
    with running(engine, llm=msgspec.structs.replace(LLM, tries_max=2)) as run:
        run.ask(unit("fine"))
        run.offer(unit("poison"))
        *_, failed = run.wait_for_answers(2)
        run.offer(unit("fine"))
        *_, last = run.wait_for_answers(3)
        (letter,) = (done.failure for done in run.sink.dones if done.failure)
    assert (failed.status, failed.attempts, last.status) == ("failed", 2, "ok")
    assert failed.error is not None
    assert (failed.error.type, failed.error.retryable) == ("llm_refused", True)
    assert "ZeroDivisionError: oops" in letter.message
    assert not letter.is_transient, "its tries are over: the loop adds a dead letter, and no try"


# ---- deadlines, bounds, revocation, the end


def test_a_running_query_whose_deadline_passes_is_cancelled_and_answered_expired() -> None:
    engine, clock = MemoryLlm(script=[HANG]), HandClock()
    with running(engine, clock=clock) as run:
        asked = unit(deadline_us=NOW_US + 1_000_000)
        run.offer(asked)
        run.wait(lambda: run.metric("time_to_first_token_seconds_count") == 1)
        assert run.tick() == NOW_US + 50_000
        clock.time_us = NOW_US + 1_000_000
        (answer,) = run.wait_for_answers(1)
        run.wait(lambda: bool(engine.cancelled))
    assert (answer.status, answer.answer, answer.attempts) == ("expired", None, 1)
    assert answer.error is not None and (answer.error.type, answer.error.retryable) == (
        "expired",
        True,
    )
    assert answer.timings_ms["total"] == 1_040
    assert engine.cancelled == [f"rag.queries.v1/1/{asked.record.source.offset}"]
    assert run.metric("llm_requests_total", outcome="cancelled") == 1
    assert run.metric("llm_requests_in_flight") == 0


def test_an_answer_in_time_whose_commit_begins_after_the_deadline_is_written_as_expired() -> None:
    with running(MemoryLlm(script=[Reply(error=LlmRefusal("busy", "full up"))])) as run:
        (answer,) = run.ask(unit(deadline_us=NOW_US + 60_000_000))
        (done,) = run.sink.dones
    assert answer.status == "ok"
    assert done.outputs_at(NOW_US + 59_999_999) == done.outputs
    (late,) = done.outputs_at(NOW_US + 60_000_000)
    expired = decode(Answer, late.value, late.headers)
    assert expired.status == "expired" and expired.error is not None
    assert expired.error.message.endswith("the last time: full up")
    assert (late.key, late.topic) == (done.outputs[0].key, done.outputs[0].topic)


def test_concurrency_and_intake_are_bounded_in_records_and_bytes() -> None:
    engine = MemoryLlm(script=[HANG] * 10)
    with running(engine, GeneratorSettings(concurrency=2)) as run:
        assert run.stage.credit() == Credit(records=16, size_bytes=INTAKE_BYTES_MAX)
        units = [unit() for _ in range(3)]
        run.offer(*units)
        run.wait(lambda: run.metric("time_to_first_token_seconds_count") == 2)
        taken_bytes = sum(one.message.size_bytes for one in units)
        assert run.stage.credit() == Credit(records=13, size_bytes=INTAKE_BYTES_MAX - taken_bytes)
        assert len(engine.requests) == 2
        assert run.metric("llm_requests_in_flight") == 2
        run.stage.revoke(frozenset(one.id for one in units), frozenset())
        assert run.stage.credit() == Credit(records=16, size_bytes=INTAKE_BYTES_MAX)


def test_a_slot_is_kept_from_queries_of_a_batch_for_those_of_users() -> None:
    engine = MemoryLlm(script=[HANG] * 10)
    with running(engine, GeneratorSettings(concurrency=3)) as run:
        run.offer(*(unit(source=a_source(n, QUERIES_BATCH.name)) for n in range(3)))
        run.wait(lambda: len(engine.requests) == 2)
        run.offer(unit("and who?"))
        run.wait(lambda: len(engine.requests) == 3)
        assert "and who?" in str(engine.requests[2])


def test_revoked_queries_are_cancelled_and_never_answered() -> None:
    engine = MemoryLlm(script=[HANG])
    with running(engine, GeneratorSettings(concurrency=1)) as run:
        hanging, waiting, other = unit(), unit(), unit()
        run.offer(hanging, waiting)
        run.wait(lambda: len(engine.requests) == 1)
        run.stage.revoke(frozenset({hanging.id, waiting.id}), frozenset())
        (answer,) = run.ask(other)
        run.wait(lambda: bool(engine.cancelled))
    assert answer.query_id == f"q-{other.id}"
    assert [request.id.rpartition("/")[2] for request in engine.requests] == [
        str(one.record.source.offset) for one in (hanging, other)
    ]


def test_closing_cancels_requests_and_is_allowed_twice_or_before_the_start() -> None:
    engine = MemoryLlm(script=[HANG])
    with running(engine) as run:
        run.offer(unit())
        run.wait(lambda: len(engine.requests) == 1)
        run.stage.close()
        assert len(engine.cancelled) == 1
        run.stage.close()
        assert run.sink.dones == []
    build_stage(
        GeneratorSettings(), LlmSettings(), Metrics(CollectorRegistry()), HandClock()
    ).close()


# ---- wiring


def test_a_template_that_cannot_be_used_stops_the_start_with_what_to_do(tmp_path: Path) -> None:
    metrics = Metrics(CollectorRegistry())
    for settings, said in (
        (GeneratorSettings(template="mine"), "no prompt template 'mine' in .*, only: .*cited"),
        (GeneratorSettings(template_dir=str(tmp_path)), "only: none"),
        (GeneratorSettings(template_dir=str(tmp_path / "gone")), "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=said):
            build_stage(settings, LLM, metrics, HandClock())
    (tmp_path / "cited.txt").write_text("[system]\nx\n")
    with pytest.raises(ConfigError, match=r"section \[user\] is missing"):
        build_stage(GeneratorSettings(template_dir=str(tmp_path)), LLM, metrics, HandClock())


def test_a_query_chooses_among_the_templates_of_a_configured_folder(
    tmp_path: Path,
) -> None:
    body = (
        "[user]\n{{passages}} {{question}}\n[passage]\n[{{n}}] {{title}} "
        "{{text}}\n[nothing_found]\nnone\n"
    )
    (tmp_path / "a.txt").write_text(f"[system]\nI am A.\n{body}")
    (tmp_path / "b.txt").write_text(f"[system]\nI am B.\n{body}")
    (tmp_path / "notes.md").write_text("no template")
    engine = MemoryLlm()
    with running(
        engine, GeneratorSettings(template="a", template_dir=str(tmp_path), concurrency=1)
    ) as run:
        run.ask(unit(), unit(query={"generation": Generation(template="b")}))
    assert [request.system for request in engine.requests] == ["I am A.", "I am B."]

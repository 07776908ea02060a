"""Withdrawn questions: wherever a query is, it ends as `cancelled`, unless it has its answer."""

from __future__ import annotations

from generator.plan.cancels import Cancels
from generator.settings import GeneratorSettings
from schemas.cancel import Cancel
from tests.generator.dedup_support import again, made
from tests.generator.memory_llm import MemoryLlm, Reply
from tests.generator.stage import running, unit
from tests.generator.test_reuse_stage import keyed
from tests.records import a_source


def test_a_cancel_of_a_record_withdraws_that_record_only() -> None:
    cancels = Cancels(cancels_max=100)
    cancels.read(Cancel(query_id="q", source=a_source(1)), 5)
    assert cancels.is_withdrawn("q", a_source(1, timestamp_ms=99)), "its timestamp is not known"
    assert not cancels.is_withdrawn("q", a_source(2))
    assert not cancels.is_withdrawn("other", a_source(1))


def test_a_cancel_of_an_id_withdraws_what_was_published_before_it() -> None:
    cancels = Cancels(cancels_max=100)
    cancels.read(Cancel(query_id="q"), 50)
    cancels.read(Cancel(query_id="q"), 40)
    assert cancels.is_withdrawn("q", a_source(1, timestamp_ms=50))
    assert not cancels.is_withdrawn("q", a_source(2, timestamp_ms=51)), "it was asked again"
    assert not cancels.is_withdrawn("other", a_source(1, timestamp_ms=1))


def test_a_cancelled_request_frees_its_place_at_the_server() -> None:
    engine = MemoryLlm(script=[Reply(hangs_after=1)])
    with running(engine, GeneratorSettings(concurrency=1)) as run:
        first, second, third = unit("a"), unit("b"), unit("c")
        run.offer(first)
        run.wait(lambda: len(engine.requests) == 1)
        run.offer(second, third)
        run.stage.cancel(second.id)
        run.stage.cancel(first.id)
        run.stage.cancel(12_345_678)
        found = {each.query_id: each for each in run.wait_for_answers(3)}
        run.stage.cancel(third.id)
    assert engine.cancelled == [first.record.source.place]
    assert [found[f"q-{one.id}"].status for one in (first, second, third)] == [
        "cancelled",
        "cancelled",
        "ok",
    ]
    error = found[f"q-{first.id}"].error
    assert error is not None and (error.type, error.retryable) == ("cancelled", False)
    assert run.metric("llm_requests_total", outcome="cancelled") == 1


def test_a_query_in_progress_and_those_that_wait_for_it_end_as_cancelled() -> None:
    bench, first, same_prompt = keyed(), unit("a"), unit("a")
    same_id = again(first)
    bench.offer(first, same_prompt, same_id)
    bench.cancel(first, same_prompt, same_id)
    bench.follow()
    assert set(bench.within.cancelled) == {first.id}
    assert [each.source for each in bench.sink.answers] == [same_prompt.record.source]
    bench.within.finish(first.id, made(first.record, "cancelled"))
    bench.commit()
    bench.follow()
    (answer,) = bench.sink.answers
    assert (answer.source, answer.status) == (same_id.record.source, "cancelled")
    assert not bench.within.units


def test_a_query_goes_on_while_a_record_with_its_id_that_is_not_withdrawn_waits_for_it() -> None:
    bench, first = keyed(), unit("a")
    second, third = again(first), again(first)
    bench.offer(first, second, third)
    for withdrawn, cancelled in ((first, []), (third, []), (second, [first.id])):
        bench.cancel(withdrawn)
        bench.follow()
        assert bench.within.cancelled == cancelled


def test_a_query_that_was_withdrawn_before_it_came_is_not_generated() -> None:
    bench, withdrawn, other = keyed(), unit("a"), unit("b")
    bench.cancel(withdrawn)
    bench.follow()
    bench.offer(withdrawn, other)
    assert list(bench.within.units) == [other.id]
    (answer,) = bench.sink.answers
    assert (answer.source, answer.status) == (withdrawn.record.source, "cancelled")


def test_a_cancel_that_comes_after_the_answer_changes_nothing() -> None:
    bench, first = keyed(), unit("a")
    second = again(first)
    bench.write(made(first.record))
    bench.cancel(first, second)
    bench.follow()
    bench.offer(second)
    bench.follow()
    assert [(each.status, each.replayed) for each in bench.sink.answers] == [("ok", True)]

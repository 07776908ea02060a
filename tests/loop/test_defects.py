"""An exception at a step of a service costs the query that it meets a try; all others go on.

Each step raises for one query: twice, and the query is answered; always, and it ends as `failed`
with a dead letter. The search thread and the sink, where an exception has no query, end the
process, which starts again.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from generator.llm.protocol import LlmEvent, LlmRequest
from generator.llm.servers import LlmServers
from generator.prompts import load_templates
from generator.service import GeneratorStage
from generator.settings import GeneratorSettings, LlmSettings
from schemas.topics import ANSWERS, GROUPS, QUERIES_DEAD, RETRIEVALS, Topic
from tests.clocks import NOW_US
from tests.e2e.support import build_index
from tests.generator.memory_llm import MemoryLlm
from tests.generator.stage import WORKFLOWS
from tests.loop.pipeline import SERVICES, Pipeline
from tests.rig.steps import Steps
from tests.waiting import wait_until

TRIES = 3
ID = "q-guilty"
OTHERS = [f"q-{number}" for number in range(7)]
LLM = LlmSettings(model="memory")


def mentioned(*arguments: Any) -> bool:
    return ID in repr(arguments)


def of_part(group: int, part: int) -> Callable[..., bool]:
    """Whether the group or unit and the part among the arguments, at these places, are its own."""

    def is_guilty(*arguments: Any) -> bool:
        found = arguments[group]
        return mentioned(getattr(found, "record", found).queries[arguments[part]])

    return is_guilty


STEPS: dict[str, Callable[..., bool]] = {
    "carpool.loop.work_observer:WorkObserver.accepted": lambda _, unit: (
        mentioned(unit) and unit.parts == 1
    ),
    "grouper.service:admit": mentioned,
    "grouper.work:WindowWork._embed": mentioned,
    "grouper.work:embed_texts": lambda _, texts: any("guilty" in text for text in texts),
    "grouper.work:WindowWork._probe": mentioned,
    "grouper.work:grouped_query": mentioned,
    "grouper.work:plan_records": mentioned,
    "grouper.work:group_done": lambda planned, *_: mentioned(planned),
    "grouper.records:encode": mentioned,
    "searcher.service:SearcherStage._take": of_part(1, 2),
    "searcher.ended_searches:finish": of_part(0, 1),
    "searcher.results:retrieval_output": mentioned,
    "generator.dedup.units:query_digest": mentioned,
    "generator.dedup.stage:DedupStage._do": mentioned,
    "generator.service:prepare_prompt": mentioned,
    "generator.service:LlmServers.tokenize": lambda _, request: "guilty" in request.user,
    "generator.server_requests:stream_answer": lambda _, request: "guilty" in request.user,
    "generator.outcomes:Outcomes.written": mentioned,
    "generator.outcomes:Outcomes.go_on": mentioned,
    "generator.outcomes:answered": mentioned,
    "generator.outputs:answer_output": mentioned,
}
"""Each step, and whether a call of it is about the query."""
OF_A_WORKFLOW = {"generator.outcomes:Outcomes.go_on": {"workflow": "hyde"}}
"""What a query must have to meet a step."""
OUTSIDE_THE_REPLY = "generator.service:LlmServers.tokenize"
ONE_OF_EACH = {step.partition(".")[0]: step for step in STEPS}.values()
"""The last step of each service."""
SUBMITTED = "carpool.loop.work_observer:WorkObserver.finished"
WITHOUT_QUERY: dict[str, Callable[..., bool]] = {
    "searcher.passages.passage_reader:PassageReader.read": lambda *_: True,
    "searcher.codes.executor:CodesExecutor._score": lambda *_: True,
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_index(tmp_path_factory.mktemp("defects"), documents=60, nlist=4)


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    """The log, which is not printed: tracebacks with all variables take seconds."""
    with capture_logs() as logs:
        yield logs


@pytest.fixture(autouse=True)
def with_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("generator.plan.health.BACKOFF_US_MIN", 1_000)
    monkeypatch.setattr("generator.plan.health.BACKOFF_US_MAX", 2_000)
    settings = GeneratorSettings()
    built = replace(
        SERVICES["generator"],
        build=lambda pipeline, metrics: GeneratorStage(
            settings,
            LLM,
            load_templates(settings),
            LlmServers([MemoryLlm()]),
            WORKFLOWS,
            metrics,
            pipeline.clock,
        ),
    )
    monkeypatch.setitem(SERVICES, "generator", built)


def inject(
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    times: int,
    is_meant: Callable[..., bool] | None = None,
) -> list[str]:
    """Makes a step raise for the query; returns what was raised so far.

    `is_meant`: whether a call of it is about the query, unless the tables of steps say so.
    """
    module, _, path = step.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    call = getattr(owner, name)
    is_guilty = is_meant or (STEPS | WITHOUT_QUERY).get(step, mentioned)
    raised: list[str] = []

    def faulty(*arguments: Any, **named: Any) -> Any:
        if len(raised) < times and is_guilty(*arguments):
            raised.append(step)
            raise ZeroDivisionError(f"a defect of {step}")
        return call(*arguments, **named)

    monkeypatch.setattr(owner, name, faulty)
    if step == OUTSIDE_THE_REPLY:
        stream = MemoryLlm.stream

        async def held(llm: MemoryLlm, request: LlmRequest) -> AsyncGenerator[LlmEvent, None]:
            if "guilty" in request.user and len(raised) < times:
                await asyncio.Event().wait()  # else the reply may end before the step begins
            async with aclosing(stream(llm, request)) as events:
                async for event in events:
                    yield event

        monkeypatch.setattr(MemoryLlm, "stream", held)
    return raised


def asked(pipeline: Pipeline, **more: Any) -> int:
    """Asks all, steps the services until all are answered, and returns the restarts."""
    restarts = 0
    others = [{"query_id": each, "text": f"what of the comet {each}?"} for each in OTHERS]
    pipeline.publish(*others, {"query_id": ID, "text": "what of the guilty?", **more})

    def stepped() -> bool:
        nonlocal restarts
        pipeline.clock.sleep(20_000)
        for name, member in pipeline.members.items():
            member.loop.step()
            if member.loop.failure is not None:
                member.loop.close()
                pipeline.members[name] = pipeline._life(name, Steps())
                restarts += 1
        return sum(pipeline.answered().values()) > len(OTHERS)

    wait_until(stepped, pipeline.answered, every_s=0.0002)
    return restarts


def ends(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """Stops the services and returns the one answer of each question."""
    pipeline.stop()
    assert [each.loop.failure for each in pipeline.members.values()] == [None] * len(SERVICES)
    answers = [json.loads(each.value or b"") for each in pipeline.broker.records(ANSWERS.name)]
    assert Counter(each["query_id"] for each in answers) == Counter([*OTHERS, ID])
    by_id = {each["query_id"]: each for each in answers}
    assert {by_id[each]["status"] for each in OTHERS} == {"ok"}
    return by_id


@pytest.mark.parametrize("step", [*STEPS, *WITHOUT_QUERY])
def test_a_query_that_meets_two_exceptions_is_answered_once(
    index: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    pipeline = Pipeline(index, {})
    raised = inject(monkeypatch, step, times=2)
    restarts = asked(pipeline, **OF_A_WORKFLOW.get(step, {}))
    assert len(raised) == 2
    assert ends(pipeline)[ID]["status"] == "ok"
    assert restarts <= (TRIES if step in WITHOUT_QUERY else 0)
    assert pipeline.broker.records(QUERIES_DEAD.name) == []


@pytest.mark.parametrize(
    "step",
    [step if step in ONE_OF_EACH else pytest.param(step, marks=pytest.mark.long) for step in STEPS],
)
def test_a_query_that_always_meets_an_exception_ends_after_its_tries(
    index: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    pipeline = Pipeline(index, {})
    inject(monkeypatch, step, times=10**6)
    assert asked(pipeline, **OF_A_WORKFLOW.get(step, {})) == 0, "a restart"
    answer = ends(pipeline)[ID]
    assert answer["status"] == "failed"
    assert f"ZeroDivisionError: a defect of {step}" in answer["error"]["message"]
    tries = {"processing_failed": TRIES, "llm_refused": LLM.tries_max}  # of a reply
    assert answer["attempts"] == tries[answer["error"]["type"]]
    (letter,) = pipeline.broker.records(QUERIES_DEAD.name)
    assert mentioned(letter.value)


def test_an_exception_of_the_search_thread_ends_all_that_it_searches_after_their_tries(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(index, {})
    step = "searcher.codes.executor:CodesExecutor._score"
    inject(monkeypatch, step, times=10**6)
    assert asked(pipeline) <= 2 * TRIES
    pipeline.stop()
    statuses = Counter((each, status) for each, status, _ in pipeline.answered().elements())
    assert statuses == Counter((each, "failed") for each in [*OTHERS, ID])


@pytest.mark.parametrize(
    ("step", "more", "status"),
    [
        ("grouper.service:expired", {"deadline": NOW_US // 1_000 + 1}, "failed"),  # no more time
        ("generator.dedup.units:decode", {}, "ok"),  # the row of the answer, in its log
    ],
)
def test_an_exception_that_no_retry_follows_ends_its_query_once(
    index: Path, monkeypatch: pytest.MonkeyPatch, step: str, more: dict[str, int], status: str
) -> None:
    pipeline = Pipeline(index, {})
    raised = inject(monkeypatch, step, times=1)
    assert asked(pipeline, **more) == 0
    by_id = ends(pipeline)
    assert raised
    assert by_id[ID]["status"] == status


@pytest.mark.parametrize("topic", [GROUPS, RETRIEVALS, ANSWERS], ids=lambda topic: topic.name)
def test_a_result_that_meets_an_exception_when_it_is_submitted_costs_its_query_a_try(
    index: Path, monkeypatch: pytest.MonkeyPatch, topic: Topic
) -> None:
    pipeline = Pipeline(index, {})
    raised = inject(
        monkeypatch,
        SUBMITTED,
        times=1,
        is_meant=lambda _, done: any(
            mentioned(each) and each.topic == topic.name for each in done.outputs
        ),
    )
    assert asked(pipeline) == 0
    assert raised
    assert ends(pipeline)[ID]["status"] == "ok"


def test_a_letter_that_meets_an_exception_when_it_is_submitted_is_written(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(index, {})
    raised = inject(
        monkeypatch,
        SUBMITTED,
        times=1,
        is_meant=lambda _, done: any(each.topic == QUERIES_DEAD.name for each in done.outputs),
    )
    pipeline.publish(b'{"query_id": "q-broken", "text": 3}')
    assert asked(pipeline) == 0
    pipeline.stop()
    assert raised
    assert len(pipeline.broker.records(QUERIES_DEAD.name)) == 1


def test_a_defect_at_a_repeated_id_does_not_supersede_the_answer_that_the_id_has(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(index, {})
    asked(pipeline)
    inject(monkeypatch, "generator.dedup.given_answers:GivenAnswers.stored", times=10**6)
    pipeline.publish({"query_id": ID, "text": "what of the guilty?"})

    def stepped() -> bool:
        pipeline.clock.sleep(20_000)
        for member in pipeline.members.values():
            member.loop.step()
        return sum(pipeline.answered().values()) > len(OTHERS) + 1

    wait_until(stepped, pipeline.answered, every_s=0.0002)
    pipeline.stop()
    answers = [
        (each.key, json.loads(each.value or b"")["status"])
        for each in pipeline.broker.records(ANSWERS.name)
        if mentioned(each.value)
    ]
    assert [status for _, status in answers] == ["ok", "failed"]
    assert dict(answers)[ID.encode()] == "ok"

"""A model in memory that notes each call with its turn: what was committed of its question then."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace

import pytest

from carpool.origins import origin_of, read_query
from carpool.telemetry.metrics import Metrics
from generator.llm.protocol import LlmEvent, LlmRequest
from generator.llm.servers import LlmServers
from generator.prompts import load_templates
from generator.service import GeneratorStage
from generator.settings import GeneratorSettings
from schemas.answer import Answer
from schemas.codec import decode, decode_retrieval
from schemas.group import Group
from schemas.query import finished_steps
from schemas.topics import ANSWERS, GROUPS, RETRIES, RETRIEVALS
from tests.generator.memory_llm import MemoryLlm
from tests.generator.stage import LLM
from tests.loop.pipeline import SERVICES, Pipeline, workflows
from tests.memory_broker import MemoryBroker

Call = tuple[str, str, str]
"""(place of the published query, system, user)."""


class PaidCalls(MemoryLlm):
    """`turns`: by call, how many records of its question were committed each time it was paid."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: dict[Call, list[int]] = {}
        self.broker: MemoryBroker | None = None

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmEvent, None]:
        assert self.broker is not None, "a generator was built"
        call = (request.id, request.system, request.user)
        turn = sum(1 for place, *_ in committed(self.broker) if place == request.id)
        self.turns.setdefault(call, []).append(turn)
        async for event in super().stream(request):
            yield event


def committed(broker: MemoryBroker) -> Iterator[tuple[str, str, int]]:
    """Yields (place, topic, finished steps) of each committed record after the published ones."""
    for message in broker.records(RETRIES.name):
        yield origin_of(message).place, RETRIES.name, finished_steps(read_query(message))
    for message in broker.records(GROUPS.name):
        for one in decode(Group, message.value, message.headers).queries:
            yield one.source.place, GROUPS.name, finished_steps(one.query)
    for message in broker.records(RETRIEVALS.name):
        found = decode_retrieval(message.value, message.headers)
        steps = 0 if isinstance(found, Answer) else finished_steps(found.query)
        assert found.source is not None
        yield found.source.place, RETRIEVALS.name, steps
    for message in broker.records(ANSWERS.name):
        answer = decode(Answer, message.value, message.headers)
        assert answer.source is not None
        yield answer.source.place, ANSWERS.name, len(answer.steps)


def use(monkeypatch: pytest.MonkeyPatch) -> PaidCalls:
    """Gives all generators one model, and grouper and generator the programs of the tests."""
    model, settings = PaidCalls(), GeneratorSettings()

    def build(pipeline: Pipeline, metrics: Metrics) -> GeneratorStage:
        model.broker = pipeline.broker
        servers = LlmServers([model])
        templates = load_templates(settings)
        return GeneratorStage(
            settings, LLM, templates, servers, workflows(), metrics, pipeline.clock
        )

    monkeypatch.setitem(SERVICES, "generator", replace(SERVICES["generator"], build=build))
    return model

"""For tests of the generator's stage: retrievals, a clock moved by hand, and a sink."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from carpool.errors import CarpoolError
from carpool.kafka.records import Output
from carpool.loop.stage import Done, Unit
from carpool.telemetry.metrics import Metrics
from carpool.telemetry.tokens import TokenKind
from carpool.workflow.load import load_workflows
from carpool.workflow.settings import WorkflowSettings
from carpool.workflow.workflows import Workflows
from generator.llm.protocol import LlmEngine
from generator.llm.servers import LlmServers
from generator.prompts import load_templates
from generator.service import GeneratorStage
from generator.settings import GeneratorSettings, LlmSettings
from schemas.answer import Answer, PartialAnswer
from schemas.codec import decode, encode
from schemas.errors import RecordError
from schemas.record import ClusterId
from schemas.retrieval import Hit, Probe, Retrieval
from schemas.topics import RETRIEVALS
from tests.clocks import NOW_US, HandClock
from tests.records import a_message, a_query, a_retrieval, a_source, a_unit, some_hits
from tests.waiting import wait_until

LLM = LlmSettings()
WORKFLOWS = load_workflows(WorkflowSettings())
PROBES = (Probe(cluster=ClusterId(1), tier="ram"), Probe(cluster=ClusterId(2), tier="ssd"))
_ids = itertools.count(1)


class ListSink:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.dones: list[Done] = []
        self.hints: list[Output] = []
        self.failure: CarpoolError | None = None

    def done(self, done: Done) -> bool:
        self.dones.append(done)
        return True

    def charge(self, parts: Sequence[tuple[int, int]], error: Exception) -> None:
        raise AssertionError("no query is to fail") from error

    def hint(self, output: Output) -> None:
        self.hints.append(output)

    def refuse(self, unit: Unit[Any], error: RecordError) -> None:
        raise AssertionError("the generator refuses no unit: it answers")

    def leave_group(self, reason: str) -> None:
        raise AssertionError("the generator has no index")

    def fail(self, error: CarpoolError) -> None:
        self.failure = error

    @property
    def answers(self) -> list[Answer]:
        return [
            decode(Answer, done.outputs[0].value, done.outputs[0].headers)
            for done in list(self.dones)
        ]

    def partials(self) -> list[PartialAnswer]:
        return [decode(PartialAnswer, output.value, output.headers) for output in self.hints]


def unit(
    text: str | None = "why?", *, found: tuple[Hit, ...] | None = None, **more: Any
) -> Unit[Retrieval]:
    """A unit with a retrieval; `more` are fields of the retrieval, or, as `query`, of its query."""
    id = next(_ids)
    query = a_query(**{"query_id": f"q-{id}", "text": text, **more.pop("query", {})})
    given: dict[str, Any] = {
        "source": a_source(id, partition=1, timestamp_ms=NOW_US // 1_000 - 40),
        "headers": (("traceparent", b"00-1"), ("other", b"x")),
        "index_version": "v7",
        "embedding_model": "mini",
        "probes": PROBES,
        "bytes_read": 4096,
        "timings_us": {"encode": 1_500, "search": 2_000},
        "deadline_us": None if query.deadline is None else query.deadline * 1_000,
    }
    hits = some_hits() if found is None else found
    retrieval = a_retrieval(query, hits, **given | more)
    value, headers = encode(retrieval, event_id="r", source="carpool/searcher", time_us=NOW_US)
    message = a_message(RETRIEVALS.name, id, key=b"q", value=value, headers=headers)
    return a_unit(id, retrieval, message)


@dataclass
class Running:
    """A stage that runs, with its sink and clock."""

    stage: GeneratorStage
    sink: ListSink
    clock: HandClock
    metrics: Metrics

    def tick(self) -> int | None:
        return self.stage.tick(self.clock.now_us(), 0)

    def offer(self, *units: Unit[Retrieval]) -> None:
        for one in units:
            self.stage.offer(one, self.clock.now_us())

    def wait(self, condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            self.tick()
            return condition()

        wait_until(holds)

    def wait_for_answers(self, count: int) -> list[Answer]:
        self.wait(lambda: len(self.sink.dones) >= count)
        return self.sink.answers

    def ask(self, *units: Unit[Retrieval]) -> list[Answer]:
        """Offers units, and returns their answers as they come."""
        before = len(self.sink.dones)
        self.offer(*units)
        return self.wait_for_answers(before + len(units))[before:]

    def wait_until_open(self) -> None:
        self.wait(lambda: not self.stage.not_ready())

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"carpool_{name}", labels) or 0.0

    def tokens(self, kind: TokenKind, tenant: str = "none") -> float:
        return self.metric("tokens_total", kind=kind, tenant=tenant)


@contextmanager
def running(
    engine: LlmEngine | Sequence[LlmEngine],
    settings: GeneratorSettings | None = None,
    llm: LlmSettings = LLM,
    clock: HandClock | None = None,
    *,
    until_open: bool = True,
    workflows: Workflows = WORKFLOWS,
) -> Iterator[Running]:
    """Starts a stage over `engine`, or several, and waits until a server is open.

    At the end the stage must not have failed, and is closed.
    """
    settings = settings or GeneratorSettings()
    clock = clock or HandClock(step_us=1_000)
    metrics, sink = Metrics(CollectorRegistry()), ListSink()
    servers = LlmServers(engine if isinstance(engine, Sequence) else [engine])
    templates = load_templates(settings)
    stage = GeneratorStage(settings, llm, templates, servers, workflows, metrics, clock)
    stage.start(sink)
    run = Running(stage, sink, clock, metrics)
    try:
        if until_open:
            run.wait_until_open()
        yield run
        assert sink.failure is None, sink.failure
    finally:
        stage.close()

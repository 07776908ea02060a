"""The answer ledger with its threads, and the real stage within."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry

from carpool.errors import ConfigError
from carpool.kafka import topic_table
from carpool.kafka.memory.broker import MemoryBroker
from carpool.kafka.records import TopicPartition
from carpool.kafka.topic_table import TableLog
from carpool.telemetry.metrics import Metrics
from generator.dedup.answers_log import MemoryAnswersLog
from generator.dedup.stage import DedupStage
from generator.llm.memory import MemoryLlm
from generator.prompts import load_templates
from generator.service import GeneratorStage
from generator.settings import GeneratorSettings
from schemas.topics import ANSWERS, RETRIEVALS
from tests.clocks import NOW_US, HandClock
from tests.generator.ledger_stage import again
from tests.generator.stage import LLM, WaitableSink, unit

# ---- with the threads, and the real stage within


@contextmanager
def whole(
    engine: MemoryLlm, reader: Callable[[MemoryBroker], TableLog]
) -> Iterator[tuple[DedupStage, WaitableSink, MemoryBroker]]:
    clock, settings, metrics, sink = (
        HandClock(step_us=1_000),
        GeneratorSettings(),
        Metrics(CollectorRegistry()),
        WaitableSink(),
    )
    broker = MemoryBroker(clock, {ANSWERS.name: 1, RETRIEVALS.name: 1})
    within = GeneratorStage(settings, LLM, load_templates(settings), engine, metrics, clock)
    outer = DedupStage(within, reader(broker), settings, metrics, clock)
    outer.start(sink)
    try:
        outer.assigned(frozenset({TopicPartition(RETRIEVALS.name, 0)}))
        yield outer, sink, broker
    finally:
        outer.close()


def test_a_question_published_twice_is_asked_once_of_the_model() -> None:
    engine = MemoryLlm()
    with whole(engine, MemoryAnswersLog) as (outer, sink, broker):
        first = unit("why?")
        second = again(first)

        def tick() -> None:
            outer.tick(NOW_US, 0)

        for one in (first, second):
            outer.offer(one, NOW_US)
        sink.wait(lambda: len(sink.dones) == 1, tick)
        output = sink.dones[0].outputs[0]
        broker.append(output.topic, output.value, key=output.key, headers=output.headers)
        sink.wait(lambda: len(sink.dones) == 2, tick)
        made_first, given_again = sink.answers
        assert (
            made_first.status,
            made_first.replayed,
            given_again.status,
            given_again.replayed,
        ) == (
            "ok",
            False,
            "ok",
            True,
        )
        assert (
            made_first.answer == given_again.answer
            and made_first.generation_id == given_again.generation_id
        )
        assert len(engine.requests) == 1
        assert sink.failure is None


def test_answers_that_cannot_be_read_for_good_end_the_service() -> None:
    class Wrong(MemoryAnswersLog):
        def open(self) -> None:
            raise ConfigError("2 partitions")

    with whole(MemoryLlm(), Wrong) as (_, sink, _):
        sink.wait(lambda: sink.failure is not None)
        assert isinstance(sink.failure, ConfigError)


def test_closing_takes_a_moment_only() -> None:
    with whole(MemoryLlm(), MemoryAnswersLog) as (outer, _, _):
        began_s = time.monotonic()
        outer.close()
        assert time.monotonic() - began_s < topic_table.CLOSE_TIMEOUT_S

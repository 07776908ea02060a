"""The generator with its answer dedup behind the real loop: what a crash repeats, and what not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from carpool.clock import Clock, SystemClock
from carpool.errors import RetryableError
from carpool.kafka.clients import ConsumerClient
from carpool.kafka.topic_log import TopicLog
from carpool.loop.delivery.at_least_once import AtLeastOnceDelivery
from carpool.loop.delivery.delivery import Delivery, DeliveryContext
from carpool.loop.delivery.exactly_once import ExactlyOnceDelivery
from carpool.loop.loop import Loop
from carpool.loop.priority.intake_queues import Intake
from carpool.loop.stage import Unit
from carpool.telemetry.metrics import Metrics
from generator.dedup.stage import DedupStage
from generator.llm.servers import LlmServers
from generator.prompts import load_templates
from generator.service import GeneratorStage
from generator.settings import GeneratorSettings
from schemas.answer import Answer
from schemas.codec import decode, decode_retrieval
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, PARTIAL_ANSWERS, QUERIES_DEAD, RETRIEVALS
from tests.generator.memory_llm import MemoryLlm
from tests.generator.stage import LLM, unit
from tests.memory_broker.broker import MemoryBroker
from tests.memory_broker.consumer import MemoryConsumer
from tests.memory_broker.producers import MemoryProducer, MemoryTransactionalProducer
from tests.memory_broker.table_log import MemoryAnswersLog
from tests.waiting import wait_until

GROUP = "carpool-generator"


class Life:
    """One life of the generator, over any consumer and delivery."""

    def __init__(
        self,
        group: str,
        consumer: ConsumerClient,
        make_delivery: Callable[[DeliveryContext], Delivery],
        log: TopicLog,
        clock: Clock,
        settings: GeneratorSettings | None = None,
        cancels: TopicLog | None = None,
    ) -> None:
        self.engine = MemoryLlm()
        settings, metrics = settings or GeneratorSettings(), Metrics(CollectorRegistry())
        within = GeneratorStage(
            settings, LLM, load_templates(settings), LlmServers([self.engine]), metrics, clock
        )
        self.stage = DedupStage(within, log, settings, metrics, clock, cancels)
        self.loop = Loop[Retrieval](
            name="generator",
            group=group,
            intake=Intake(
                topic=RETRIEVALS.name,
                decode=lambda message: decode_retrieval(message.value, message.headers),
                bad_input="stop",
            ),
            stage=self.stage,
            consumer=consumer,
            make_delivery=make_delivery,
            clock=clock,
            metrics=metrics,
        )
        self.loop.start()

    def turn(self, until: Callable[[], bool]) -> None:
        def stepped() -> bool:
            if until():
                return True
            self.loop.step()
            assert self.loop.failure is None, self.loop.failure
            return False

        wait_until(stepped, every_s=0)


class Service(Life):
    """A life on a broker in memory."""

    def __init__(
        self,
        broker: MemoryBroker,
        delivery: str,
        log: TopicLog | None = None,
        settings: GeneratorSettings | None = None,
        cancels: TopicLog | None = None,
    ) -> None:
        exactly_once = delivery == "exactly_once"

        def make_delivery(context: DeliveryContext) -> Delivery:
            if exactly_once:
                return ExactlyOnceDelivery(
                    context,
                    make_producer=lambda: MemoryTransactionalProducer(broker, f"{GROUP}-one"),
                    make_hint_producer=lambda: MemoryProducer(broker),
                    instance_id="one",
                    commit_interval_ms=0,
                )
            return AtLeastOnceDelivery(
                context,
                make_producer=lambda: MemoryProducer(broker),
                make_hint_producer=lambda: MemoryProducer(broker),
                commit_interval_ms=0,
            )

        self.consumer = (
            MemoryConsumer(broker, GROUP, own_instance_id="one")
            if exactly_once
            else MemoryConsumer(broker, GROUP)
        )
        log = log or MemoryAnswersLog(broker)
        super().__init__(GROUP, self.consumer, make_delivery, log, broker.clock, settings, cancels)

    def crash(self) -> None:
        self.consumer.crash()
        self.loop.delivery.close(until_us=0)
        self.stage.close()


@pytest.fixture(params=["at_least_once", "exactly_once"])
def delivery(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def make_broker() -> MemoryBroker:
    return MemoryBroker(
        SystemClock(),
        dict.fromkeys((RETRIEVALS.name, ANSWERS.name, PARTIAL_ANSWERS.name, QUERIES_DEAD.name), 2),
    )


def publish(broker: MemoryBroker, *units: Unit[Retrieval]) -> None:
    for one in units:
        key = one.record.query.query_id.encode()
        broker.append(RETRIEVALS.name, one.message.value, key=key, headers=one.message.headers)


def answers(broker: MemoryBroker) -> list[Answer]:
    return [
        decode(Answer, message.value, message.headers) for message in broker.records(ANSWERS.name)
    ]


def committed(broker: MemoryBroker) -> int:
    return sum(position.offset or 0 for position in broker.committed(GROUP).values())


def test_an_id_that_is_published_three_times_and_once_for_something_else_is_generated_once(
    delivery: str,
) -> None:
    broker = make_broker()
    publish(
        broker,
        *(unit("why?", query={"query_id": "q"}) for _ in range(3)),
        unit("who?", query={"query_id": "q"}),
    )
    publish(broker, unit("what?", query={"query_id": "other"}))
    service = Service(broker, delivery)
    service.turn(lambda: len(answers(broker)) == 5 and committed(broker) == 5)
    service.crash()
    found = answers(broker)
    assert Counter((one.query_id, one.status, one.replayed) for one in found) == {
        ("q", "ok", False): 1,
        ("q", "ok", True): 2,
        ("q", "failed", False): 1,
        ("other", "ok", False): 1,
    }
    assert len({one.source for one in found}) == 5
    assert len(service.engine.requests) == 2

    later = unit("why?", query={"query_id": "q"})
    publish(broker, later)
    successor = Service(broker, delivery)
    successor.turn(lambda: len(answers(broker)) == 6)
    successor.crash()
    assert successor.engine.requests == []
    (given,) = [one for one in answers(broker) if one.source == later.record.source]
    assert given.replayed


def test_an_answer_that_was_written_and_not_acknowledged_before_a_crash_is_not_made_again() -> None:
    broker = make_broker()
    publish(
        broker, unit("why?", query={"query_id": "q"}), unit("what?", query={"query_id": "other"})
    )
    for _ in range(1_000):
        broker.break_next("commit_offsets", RetryableError("the coordinator is away"))
    first = Service(broker, "at_least_once")
    first.turn(lambda: len(answers(broker)) == 2)
    first.crash()
    assert committed(broker) == 0

    broker._faults.clear()
    second = Service(broker, "at_least_once")
    second.turn(lambda: committed(broker) == 2)
    second.crash()
    assert len(answers(broker)) == 2
    assert second.engine.requests == []


def test_a_successor_makes_what_its_predecessor_did_not_and_nothing_twice(delivery: str) -> None:
    broker = make_broker()
    questions = [unit(f"why {n}?", query={"query_id": f"q-{n}"}) for n in range(8)]
    publish(broker, *questions)
    first = Service(broker, delivery)
    first.turn(lambda: len(answers(broker)) >= 4)
    first.crash()
    left = 8 - len(answers(broker))
    second = Service(broker, delivery)
    second.turn(lambda: committed(broker) == 8)
    second.crash()
    assert Counter(one.source for one in answers(broker)) == {
        one.record.source: 1 for one in questions
    }
    assert len(second.engine.requests) == left

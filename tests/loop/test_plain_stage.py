"""The loop without queries: a stage of a few lines, in order, and tried again in place."""

from __future__ import annotations

import random
import re
import threading
from pathlib import Path

import pytest

from carpool.clock import SystemClock
from carpool.errors import AbortedError, RetryableError
from carpool.kafka.admin import create_topics
from carpool.kafka.librdkafka import LibrdkafkaProducer
from carpool.kafka.records import Output
from carpool.kafka.settings import KafkaSettings
from carpool.loop.delivery.delivery import LoopParts
from carpool.loop.loop import Loop
from carpool.loop.priority.intake_queues import Intake
from carpool.loop.retry import FailureLimits
from carpool.loop.stage import Done, Sink, Stage, Unit
from carpool.run_service import make_consumer, make_delivery
from carpool.telemetry.metrics import Metrics
from schemas.record import header
from schemas.topics import HOUR_MS, Topic
from tests.clocks import HandClock
from tests.e2e.support import read_to_end
from tests.loop.support import SteppedAtLeastOnce, SteppedExactlyOnce, turn
from tests.memory_broker import (
    MemoryBroker,
    MemoryConsumer,
    MemoryProducer,
    MemoryTransactionalProducer,
)
from tests.waiting import WAIT_S, wait_until

TOPICS = ("lines", "lines.dlq", "counts")
ROOM = Path(__file__).parents[2] / "carpool" / "loop"
LIMITS = FailureLimits(attempts_max=3, retry_delay_us=1_000_000)


class WordCounts(Stage[str]):
    def start(self, sink: Sink) -> None:
        self.sink = sink

    def offer(self, unit: Unit[str], now_us: int) -> None:
        count = str(len(unit.record.split())).encode()
        output = Output(topic="counts", key=unit.message.key, value=count)
        self.sink.done(Done(parts=unit.owed, outputs=(output,)))


class HeldCounts(WordCounts):
    """Keeps its units until the test counts their words, in any order."""

    def start(self, sink: Sink) -> None:
        super().start(sink)
        self.units: dict[str, Unit[str]] = {}

    def offer(self, unit: Unit[str], now_us: int) -> None:
        self.units[unit.record] = unit

    def revoke(self, unit_ids: frozenset[int], partitions: object) -> None:
        self.units = {text: each for text, each in self.units.items() if each.id not in unit_ids}

    def count(self, text: str) -> None:
        super().offer(self.units.pop(text), 0)

    def fail(self, text: str) -> None:
        self.sink.charge(self.units.pop(text).owed, RetryableError("the disk is full"))


class Lines:
    """A topic of lines, and members of a service on it."""

    def __init__(self, delivery: str) -> None:
        self.clock = HandClock(step_us=1)
        self.delivery = delivery
        self.broker = MemoryBroker(self.clock, {"lines": 2, "lines.dlq": 2, "counts": 1})

    def loop(self, stage: Stage[str], *, in_order: bool = False) -> Loop[str]:
        is_exact = self.delivery == "exactly_once"

        def make_delivery(context: LoopParts) -> SteppedExactlyOnce | SteppedAtLeastOnce:
            if not is_exact:
                return SteppedAtLeastOnce(
                    context,
                    make_producer=lambda: MemoryProducer(self.broker),
                    make_hint_producer=lambda: MemoryProducer(self.broker),
                    commit_interval_ms=0,
                )
            return SteppedExactlyOnce(
                context,
                producer=MemoryTransactionalProducer(self.broker, "words-one"),
                make_hint_producer=lambda: MemoryProducer(self.broker),
                instance_id="one",
                commit_interval_ms=0,
            )

        own = {"own_instance_id": "one"} if is_exact else {}
        self.consumer = MemoryConsumer(self.broker, "words", **own)
        loop = Loop[str](
            name="words",
            group="words",
            intake=Intake(
                topic="lines",
                decode=lambda message: (message.value or b"").decode(),
                in_order=in_order,
            ),
            stage=stage,
            consumer=self.consumer,
            make_delivery=make_delivery,
            clock=self.clock,
            metrics=Metrics(),
            limits=LIMITS,
        )
        loop.start()
        return loop

    def publish(self, *lines: bytes, partition: int = 0) -> None:
        for line in lines:
            self.broker.append("lines", line, key=line, partition=partition)

    def counts(self) -> list[tuple[bytes | None, bytes | None]]:
        return [(each.key, each.value) for each in self.broker.records("counts")]

    def keys(self) -> list[bytes | None]:
        return [key for key, _ in self.counts()]


@pytest.fixture(params=["at_least_once", "exactly_once"])
def lines(request: pytest.FixtureRequest) -> Lines:
    return Lines(request.param)


def test_a_stage_of_ten_lines_is_a_whole_service(lines: Lines) -> None:
    loop = lines.loop(WordCounts())
    lines.publish(b"one two", b"\xff", b"three")
    turn(loop)
    assert lines.counts() == [(b"one two", b"2"), (b"three", b"1")]
    (letter,) = lines.broker.records("lines.dlq")
    assert letter.value == b"\xff"
    assert not loop.in_flight.units and loop.failure is None
    loop.close()
    lines.publish(b"four five six")
    turn(lines.loop(WordCounts()))
    assert lines.counts()[2:] == [(b"four five six", b"3")], "nothing is counted twice"


def test_it_is_a_service_on_a_broker_too(embedded_bootstrap: str) -> None:
    topics = [Topic(name=name, retention_ms=HOUR_MS, purpose="a test") for name in TOPICS]
    settings = KafkaSettings(bootstrap=embedded_bootstrap, prefix="words", partitions=1)
    create_topics(settings, topics)
    clock = SystemClock()
    loop = Loop[str](
        name="words",
        group="words",
        intake=Intake(topic="lines", decode=lambda message: (message.value or b"").decode()),
        stage=WordCounts(),
        consumer=make_consumer(settings, "words", clock, "at_least_once"),
        make_delivery=make_delivery(settings, "words", "at_least_once"),
        clock=clock,
        metrics=Metrics(),
    )
    thread = threading.Thread(target=loop.run, kwargs={"drain_us": 5_000_000})
    thread.start()
    producer = LibrdkafkaProducer(settings)
    assert producer.produce(Output(topic="lines", key=b"k", value=b"one two"), lambda _: None)
    producer.close(WAIT_S)
    topic = settings.broker_topic("counts")
    wait_until(lambda: [each.value for each in read_to_end(embedded_bootstrap, topic)] == [b"2"])
    loop.stop()
    thread.join(WAIT_S)
    assert loop.failure is None


def test_results_are_handed_over_in_the_order_of_offsets_and_partitions_do_not_wait(
    lines: Lines,
) -> None:
    stage = HeldCounts()
    loop = lines.loop(stage, in_order=True)
    lines.publish(b"a", b"b", b"c")
    lines.publish(b"x", partition=1)
    turn(loop)
    for text in ("c", "x", "b"):
        stage.count(text)
    turn(loop)
    assert lines.keys() == [b"x"]
    stage.count("a")
    turn(loop)
    assert lines.keys() == [b"x", b"a", b"b", b"c"]
    lines.publish(b"d")
    turn(loop)
    stage.count("d")
    turn(loop)
    assert lines.keys()[-1] == b"d"


def test_a_passing_failure_is_tried_again_in_place_and_keeps_its_order(lines: Lines) -> None:
    stage = HeldCounts()
    loop = lines.loop(stage, in_order=True)
    lines.publish(b"a", b"b")
    turn(loop)
    stage.count("b")
    for _ in range(LIMITS.attempts_max - 1):
        stage.fail("a")
        turn(loop)
        assert not stage.units, "it waits for its retry"
        lines.clock.sleep(LIMITS.retry_delay_us)
        turn(loop)
        assert list(stage.units) == ["a"]
    assert lines.keys() == []
    stage.count("a")
    turn(loop)
    assert lines.keys() == [b"a", b"b"]
    assert lines.broker.records("lines.dlq") == []


def test_after_its_last_attempt_a_record_becomes_a_dead_letter(lines: Lines) -> None:
    stage = HeldCounts()
    loop = lines.loop(stage, in_order=True)
    lines.publish(b"a", b"b")
    turn(loop)
    stage.count("b")
    for _ in range(LIMITS.attempts_max):
        stage.fail("a")
        lines.clock.sleep(LIMITS.retry_delay_us)
        turn(loop)
    assert lines.keys() == [b"b"]
    (letter,) = lines.broker.records("lines.dlq")
    assert letter.key == b"a"
    assert header(letter.headers, "rag.errors.exception.message") == b"the disk is full"
    assert header(letter.headers, "rag.errors.attempts") == b"3"
    assert not loop.in_flight.units


def test_a_revocation_forgets_results_that_wait_and_the_next_owner_makes_them(
    lines: Lines,
) -> None:
    stage = HeldCounts()
    loop = lines.loop(stage, in_order=True)
    lines.publish(b"a", b"b")
    turn(loop)
    stage.count("b")
    lines.broker.expel("words", lines.consumer)
    lines.clock.sleep(2_000_000)
    turn(loop)
    for text in ("b", "a"):
        stage.count(text)
        turn(loop)
    assert lines.keys() == [b"a", b"b"]


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_work_failures_aborts_and_a_crash_is_seen_once_and_in_order(seed: int) -> None:
    rng, lines, stage = random.Random(seed), Lines("exactly_once"), HeldCounts()
    loop = lines.loop(stage, in_order=True)
    texts = [f"{number}".encode() for number in range(30)]
    for text in texts:
        lines.publish(text, partition=int(text) % 2)
    turn(loop)
    crash_at = rng.randrange(60)
    for step in range(2_000):
        if step == crash_at:
            lines.consumer.crash()
            stage = HeldCounts()
            loop = lines.loop(stage, in_order=True)
        if rng.random() < 0.05:
            lines.broker.break_next("commit", AbortedError("the coordinator moved"))
        for text in rng.sample(sorted(stage.units), min(2, len(stage.units))):
            (stage.fail if rng.random() < 0.1 else stage.count)(text)
        lines.clock.sleep(rng.choice((1, 100_000, 1_000_000)))
        turn(loop, 1)
        if len(lines.keys()) + len(lines.broker.records("lines.dlq")) == len(texts):
            break
    found, letters = lines.keys(), {each.key for each in lines.broker.records("lines.dlq")}
    for partition in (0, 1):
        own = [each for each in found if int(each or b"") % 2 == partition]
        assert own == [each for each in texts[partition::2] if each not in letters]


NAMES = re.compile(
    r"(?i:quer(y|ies)|question|\bgroups\b|grouped|answer|retrieval|grouper|searcher|generator)"
    r"|\bGroup\b"
)
"""What only services know. A consumer group is Kafka's own."""


def test_the_loop_names_nothing_that_its_records_say() -> None:
    named = [
        f"{file.relative_to(ROOM)}:{number}: {line}"
        for file in sorted(ROOM.rglob("*"))
        if file.suffix in (".py", ".md")
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if NAMES.search(line)
    ]
    assert named == []

"""The stage in front of the generator's: what it answers, its credit, and its readiness."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from carpool.endings import answer_output
from carpool.errors import CarpoolError, ConfigError, RetryableError
from carpool.kafka import topic_table
from carpool.kafka.records import Message, Output, TopicPartition
from carpool.loop.stage import Credit, Unit
from carpool.telemetry.metrics import Metrics
from generator.dedup import stage
from generator.dedup.stage import DedupStage
from generator.settings import GeneratorSettings
from schemas.answer import Answer, unanswered
from schemas.cancel import Cancel
from schemas.codec import decode, decode_retrieval, encode
from schemas.record import header
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, CANCELS, QUERIES_BATCH, RETRIEVALS, RETRIEVALS_BATCH
from tests.clocks import NOW_US, HandClock
from tests.generator.dedup_support import Within, again, made
from tests.generator.stage import ListSink, unit
from tests.memory_broker.broker import MemoryBroker
from tests.memory_broker.table_log import MemoryAnswersLog, MemoryCancelsLog

NOW_MS = NOW_US // 1_000


class SlowReader(MemoryAnswersLog):
    """Reads only while `is_let`, and raises `trouble`."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.trouble: CarpoolError | None = None
        self.is_let = True

    def begin(self, partition: int, offset: int) -> None:
        if self.trouble is not None:
            raise self.trouble
        super().begin(partition, offset)

    def poll(self, timeout_s: float, records_max: int) -> Sequence[Message]:
        return super().poll(timeout_s, records_max) if self.is_let else ()


class Bench:
    """A dedup around a stage that a test ends by hand, on a broker in memory.

    With `has_keys` the text of a question is the key of its prompt.
    """

    def __init__(
        self,
        *,
        has_keys: bool = False,
        partitions: int = 1,
        reader: type[SlowReader] = SlowReader,
    ) -> None:
        self.clock = HandClock()
        topics = dict.fromkeys((ANSWERS.name, RETRIEVALS.name, CANCELS.name), partitions)
        self.broker = MemoryBroker(self.clock, topics)
        self.reader = reader(self.broker)
        self.within = Within((lambda each: each.query.text) if has_keys else lambda _: None)
        self.sink = ListSink()
        self.metrics = Metrics(CollectorRegistry())
        self.stage = DedupStage(
            self.within,
            self.reader,
            GeneratorSettings(),
            self.metrics,
            self.clock,
            MemoryCancelsLog(self.broker),
        )
        self.stage.start(self.sink)

    def assign(self, *partitions: int) -> None:
        numbers = partitions or (0,)
        self.stage.assigned(frozenset(TopicPartition(RETRIEVALS.name, n) for n in numbers))

    def offer(self, *units: Unit[Any]) -> None:
        for one in units:
            self.stage.offer(one, self.clock.now_us())

    def follow(self) -> None:
        for table in self.stage._tables:
            table.step()
        self.stage.tick(self.clock.now_us(), 0)
        self.stage.check_integrity()

    def write(self, *outputs: Output) -> None:
        for output in outputs:
            self.broker.append(output.topic, output.value, key=output.key, headers=output.headers)

    def commit(self) -> None:
        """What was handed over is in the log."""
        for done in self.sink.dones:
            self.write(*done.outputs)
        self.sink.dones.clear()

    def cancel(self, *units: Unit[Retrieval]) -> None:
        for one in units:
            record = Cancel(query_id=one.record.query.query_id, source=one.record.source)
            value, headers = encode(record, event_id="c", source="test", time_us=NOW_US)
            self.broker.append(CANCELS.name, value, headers=headers)

    def decisions(self, result: str) -> float:
        value = self.metrics.registry.get_sample_value(
            "carpool_answer_ledger_decisions_total", {"result": result}
        )
        return value or 0.0


def assigned() -> Bench:
    bench = Bench()
    bench.assign()
    bench.follow()
    return bench


def answered(text: str | None = None) -> tuple[Bench, Unit[Retrieval]]:
    """A dedup that has read the answer to a question."""
    bench, first = assigned(), unit("why?")
    bench.write(made(first.record, text=text))
    bench.follow()
    return bench, first


def test_a_replayed_answer_has_its_own_source_headers_and_key_and_the_stored_text() -> None:
    bench, first = answered("Because.")
    second = again(first)
    bench.offer(second)
    assert not bench.within.units
    bench.follow()
    (done,) = bench.sink.dones
    answer = decode(Answer, done.outputs[0].value, done.outputs[0].headers)
    assert done.parts == ((second.id, 0),)
    assert (answer.status, answer.replayed, answer.answer) == ("ok", True, "Because.")
    assert (answer.query_id, answer.source) == (first.record.query.query_id, second.record.source)
    assert done.outputs[0].key == answer.query_id.encode()
    assert header(done.outputs[0].headers, "correlation_id") == str(second.id).encode()
    assert header(done.outputs[0].headers, "traceparent") == b"00-2"
    assert (
        header(done.outputs[0].headers, "ce_id") == f"{second.record.source.record}/answer".encode()
    )
    assert answer.timings_ms["total"] >= 0
    assert bench.decisions("replayed") == 1


def test_the_same_id_with_another_question_is_refused_with_what_to_do() -> None:
    bench, first = answered()
    other = again(first, text="who?")
    bench.offer(other)
    (answer,) = bench.sink.answers
    assert answer.error is not None
    error = answer.error
    assert (answer.status, error.type, error.retryable) == ("failed", "conflict", False)
    assert "an id of its own" in answer.error.message
    assert (answer.source, answer.replayed) == (other.record.source, False)
    assert bench.decisions("conflict") == 1


def given_before(first: Unit[Retrieval], offset: int | None = None) -> Unit[Retrieval | Answer]:
    """The answer of the grouper to the record of `first`, or to another one with its id."""
    source = first.record.source
    if offset is not None:
        source = msgspec.structs.replace(source, offset=offset)
    answer = unanswered(
        query_id=first.record.query.query_id,
        status="expired",
        stage="grouper",
        error_type="expired",
        message="late",
        source=source,
    )
    headers = (("correlation_id", b"c"),)
    output = answer_output(answer, stage="grouper", now_us=NOW_US, passed_on=headers)
    message = dataclasses.replace(unit("why?").message, value=output.value, headers=output.headers)
    read = decode_retrieval(message.value, message.headers)
    assert read == answer
    return Unit(id=first.id + 10_000, record=read, message=message)


def test_an_answer_of_an_earlier_service_is_written_unless_its_record_has_one() -> None:
    bench, first = assigned(), unit("why?")
    given = given_before(first)
    bench.offer(given, dataclasses.replace(given, id=given.id + 1))
    bench.follow()
    (done,) = bench.sink.dones
    (output,) = done.outputs
    assert (output.key, output.partition) == (
        first.record.query.query_id.encode(),
        given.source.partition,
    )
    assert decode(Answer, output.value, output.headers) == given.record
    assert header(output.headers, "correlation_id") == b"c"
    bench.commit()
    bench.follow()
    bench.offer(given_before(first), first)
    assert [done.outputs for done in bench.sink.dones] == [(), (), ()]
    assert bench.decisions("skipped") == 3 and not bench.within.units


def test_an_answer_of_an_earlier_service_waits_for_a_record_of_its_id() -> None:
    bench, first = assigned(), unit("why?")
    bench.offer(first, given_before(first, offset=99_999))
    bench.follow()
    assert bench.sink.dones == []
    bench.within.finish(first.id, made(first.record))
    bench.commit()
    bench.follow()
    assert [answer.status for answer in bench.sink.answers] == ["expired"]


def test_no_answer_supersedes_the_ok_answer_of_its_id() -> None:
    text = "what else is asked?"
    for offered in (
        lambda first: given_before(first, offset=99_999),
        lambda first: again(first, text=text),
        lambda first: again(first, text=text, deadline=NOW_MS - 1),
    ):
        bench, first = answered()
        bench.offer(offered(first))
        bench.follow()
        (done,) = bench.sink.dones
        (output,) = done.outputs
        answer = decode(Answer, output.value, output.headers)
        assert answer.status != "ok" and answer.source is not None
        key = f"{answer.query_id}@{answer.source.place}".encode()
        assert (output.key, output.partition) == (key, 0)
        assert done.failure is None or done.failure.reason == "conflict"


def test_units_wait_until_the_answers_of_their_partition_are_read_and_it_is_paused() -> None:
    bench, known, new = Bench(), unit("why?"), unit("who?")
    before = bench.stage.credit()
    bench.write(made(known.record), *(made(unit("else").record) for _ in range(3)))
    bench.reader.is_let = False
    bench.assign()
    bench.offer(again(known), new)
    bench.follow()
    assert not bench.within.units and not bench.sink.dones
    assert bench.stage.not_ready() == ("reading the answers of partitions 0: 0%",)
    assert bench.stage.tick(NOW_US, 0) == NOW_US + stage.WAITING_WAKE_US
    credit = bench.stage.credit()
    assert credit.paused_partitions == {TopicPartition(RETRIEVALS.name, 0)}
    assert credit.records == before.records - 2
    assert credit.size_bytes < before.size_bytes - 2 * 100
    bench.reader.is_let = True
    bench.follow()
    assert list(bench.within.units) == [new.id]
    bench.follow()
    assert [answer.replayed for answer in bench.sink.answers] == [True]
    assert bench.stage.not_ready() == ()
    assert bench.stage.tick(NOW_US, 0) is None
    credit = bench.stage.credit()
    assert (credit.records, credit.paused_partitions) == (before.records - 1, frozenset())


def test_nothing_is_taken_in_while_the_log_shows_too_few_of_the_answers(monkeypatch: Any) -> None:
    monkeypatch.setattr(stage, "UNSEEN_MAX", 2)
    bench = assigned()
    for one in (unit("a"), unit("b")):
        bench.offer(one)
        bench.within.finish(one.id, made(one.record))
    assert bench.stage.credit() == Credit(records=0, size_bytes=0)
    assert "2 answers were handed over" in bench.stage.not_ready()[0]
    bench.commit()
    bench.follow()
    assert bench.stage.credit().records > 0
    assert bench.stage.not_ready() == ()


def test_an_id_in_both_priority_classes_is_generated_once_by_the_owner_of_both_partitions() -> None:
    bench, first = assigned(), unit("why?")
    bench.stage.assigned(frozenset({TopicPartition(RETRIEVALS_BATCH.name, 0)}))
    bench.follow()
    second = again(first)
    record = msgspec.structs.replace(
        second.record,
        source=msgspec.structs.replace(second.record.source, topic=QUERIES_BATCH.name),
    )
    place = msgspec.structs.replace(second.message.source, topic=RETRIEVALS_BATCH.name)
    batch = Unit(
        id=second.id, record=record, message=dataclasses.replace(second.message, source=place)
    )
    bench.offer(first, batch)
    assert list(bench.within.units) == [first.id]
    bench.within.finish(first.id, made(first.record, text="Because."))
    bench.commit()
    bench.follow()
    bench.follow()
    assert [(answer.replayed, answer.answer) for answer in bench.sink.answers] == [
        (True, "Because.")
    ]


def test_a_stored_answer_that_was_fetched_too_late_is_not_given() -> None:
    bench, first = answered()
    second = again(first, deadline=NOW_MS + 100)
    bench.offer(second)
    bench.clock.time_us += 100_000
    bench.follow()
    assert [answer.status for answer in bench.sink.answers] == ["expired"]
    assert list(bench.within.units) == []


def test_a_record_that_is_no_answer_is_counted_and_a_deleted_answer_is_generated_again() -> None:
    bench, first = answered()
    bench.broker.append(ANSWERS.name, b"rubbish", key=b"x")
    bench.broker.append(ANSWERS.name, None, key=first.record.query.query_id.encode())
    bench.follow()
    second = again(first)
    bench.offer(second)
    assert list(bench.within.units) == [second.id]
    assert bench.decisions("unreadable") == 1


def test_answers_older_than_the_horizon_are_generated_again() -> None:
    bench, first = Bench(), unit("why?")
    bench.write(made(first.record))
    bench.clock.time_us += 86_400_000_000 + 1_000
    bench.write(made(unit("why not?").record))  # else older ones are read
    bench.assign()
    bench.follow()
    second = again(first)
    bench.offer(second)
    assert list(bench.within.units) == [second.id]


def test_readiness_names_trouble_with_the_log_until_it_is_read_again() -> None:
    bench, new = Bench(), unit("why?")
    bench.reader.trouble = RetryableError("no broker answers")
    bench.assign()
    bench.offer(new)
    bench.follow()
    trouble, reading = bench.stage.not_ready()
    assert "no broker answers" in trouble and reading == "reading the answers of partitions 0: 0%"
    bench.clock.time_us += topic_table.RETRY_US
    bench.follow()
    bench.clock.time_us += 2 * topic_table.RETRY_US
    bench.reader.trouble = None
    bench.follow()
    assert bench.stage.not_ready() == ()
    assert list(bench.within.units) == [new.id]


def test_a_log_that_can_never_be_read_ends_the_service() -> None:
    bench = Bench()
    bench.stage.table._listener.table_failed(ConfigError("2 partitions"))
    assert isinstance(bench.sink.failure, ConfigError)

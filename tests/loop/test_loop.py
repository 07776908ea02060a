"""The loop on the memory broker: order, parts, revocations, crashes, rejections."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from carpool.errors import AbortedError, CarpoolError, ConfigError, DeploymentError, RetryableError
from carpool.kafka.checks import DeliveryName
from carpool.kafka.clients import Position
from carpool.kafka.raw_records import unreadable_batch
from carpool.kafka.records import Message, TopicPartition
from carpool.loop.stage import Credit, Done, LateOutputs
from carpool.origins import read_query
from schemas.errors import RecordError
from schemas.query import Query
from schemas.record import Headers
from schemas.topics import RETRIES
from tests.loop.support import GROUP, Bench, HandStage, Retries, result, turn, with_taken
from tests.memory_broker import MemoryConsumer
from tests.memory_broker.broker import Call

TWO_SEARCHES = (
    b'{"query_id": "q", "text": "a", "journal": {"root": {"query_id": "q", "text": "a"}, '
    b'"program": "p", "version": 1, "digest": "d", "other_searches": [{"text": "b", "top_k": %b}]}}'
)
"""A step of a workflow that searches two texts."""


@pytest.fixture(autouse=True, params=["at_least_once", "exactly_once"])
def delivery(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> DeliveryName:
    """Runs every test with both deliveries."""
    chosen: DeliveryName = request.param
    monkeypatch.setattr(Bench, "delivery", chosen)
    return chosen


def test_work_completes_out_of_order_and_offsets_wait_for_the_slowest() -> None:
    bench, stage, loop, _ = with_taken(Bench(), "a", "b", "c")
    stage.finish("c")
    stage.finish("b")
    turn(loop)
    assert sorted(bench.results()) == ["b/0", "c/0"]
    assert bench.committed() == (0, "1;1+2")
    stage.finish("a")
    turn(loop)
    assert bench.committed() == (3, "")
    assert not loop.in_flight.units


def test_a_member_to_which_nothing_comes_joins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, stage, loop, consumer = with_taken(Bench(), "a")
    monkeypatch.setattr(consumer, "_paused", frozenset({bench.topic}))
    monkeypatch.setattr(consumer, "pause", lambda *_: None)  # by its client alone
    joined = consumer.subscribe

    def flows_again(*args: Any) -> None:
        consumer._paused = frozenset()
        joined(*args)

    monkeypatch.setattr(consumer, "subscribe", flows_again)
    bench.publish("b")
    bench.wait(loop, 70_000_000)
    (reason,) = loop.not_ready()
    assert "1 records waiting" in reason
    assert "joins" not in reason, "a member with work in flight stays"
    stage.finish("a")
    turn(loop)
    bench.wait(loop, 50_000_000)
    assert [unit.record.text for unit in stage.units] == ["a"]
    bench.wait(loop, 20_000_000)
    assert any("joins its group again" in reason for reason in loop.not_ready())
    bench.wait(loop, 2_000_000)
    bench.wait(loop)
    stage.finish("b")
    bench.wait(loop)
    assert sorted(bench.results()) == ["a/0", "b/0"]
    assert loop.not_ready() == ()


def test_a_restart_repeats_no_part_that_was_committed() -> None:
    bench, first = Bench(), HandStage()
    loop, consumer = bench.loop(first, parts=lambda _: 2)
    bench.publish("a", "b", "c")
    turn(loop)
    first.finish("a", part=1)
    first.finish("b", part=0)
    first.finish("b", part=1)
    turn(loop)
    consumer.crash()

    second = HandStage()
    again, _ = bench.loop(second, parts=lambda _: 2)
    turn(again)
    assert [(unit.record.text, unit.parts_done) for unit in second.units] == [
        ("a", {1}),
        ("c", frozenset()),
    ]
    second.finish("a", part=0)
    second.finish("c", part=0)
    second.finish("c", part=1)
    turn(again)
    assert bench.committed() == (3, "")
    assert sorted(bench.results()) == ["a/0", "a/1", "b/0", "b/1", "c/0", "c/1"]


def test_a_revocation_commits_once_and_discards_later_results() -> None:
    bench, stage = Bench(), HandStage()
    loop, consumer = bench.loop(stage)
    assert loop.not_ready() == ("starting",)
    bench.publish("a", "b", partition=0)
    bench.publish("x", partition=1)
    turn(loop)
    assert loop.not_ready() == ()
    lost = stage.unit("b")
    stage.finish("a")
    turn(loop)
    bench.broker.assign("carpool-test", {1: consumer})
    commits = len(bench.broker.commits)
    turn(loop)
    assert len(bench.broker.commits) <= commits + 1
    assert stage.revoked == [frozenset({lost.id})]
    assert stage.sink is not None
    stage.sink.done(Done(parts=((lost.id, 0),), outputs=(result("b/late"),)))
    stage.finish("x")
    turn(loop)
    assert bench.results() == ["a/0", "x/0"], "the late result is not written"
    assert (bench.committed(0), bench.committed(1)) == ((1, ""), (1, ""))
    bench.broker.assign("carpool-test", {})
    bench.wait(loop)
    assert loop.not_ready() == ("no partition of rag.queries.v1 is assigned to this member",)


def test_work_shared_with_a_revoked_partition_is_offered_again_without_it() -> None:
    bench, stage = Bench(), HandStage()
    loop, consumer = bench.loop(stage)
    bench.publish("a", partition=0)
    bench.publish("x", "y", partition=1)
    turn(loop)
    units = [stage.unit(text) for text in ("a", "x", "y")]
    bench.broker.assign("carpool-test", {1: consumer})
    turn(loop)
    stage.units.clear()
    assert stage.sink is not None
    stage.sink.done(Done(parts=tuple((unit.id, 0) for unit in units), outputs=(result("a+x+y"),)))
    turn(loop)
    assert bench.results() == [], "a window with a lost query does not commit"
    assert [unit.record.text for unit in stage.units] == ["x", "y"]
    stage.finish("x", "y")
    turn(loop)
    assert bench.results() == ["x/0", "y/0"]
    assert bench.committed(1) == (2, "")


def test_without_credit_the_backlog_waits_at_the_broker() -> None:
    _, stage, loop, _ = with_taken(Bench(), "a", "b", "c", credit=2)
    assert [unit.record.text for unit in stage.units] == ["a", "b"]
    assert sum(loop._consumer.waiting().values()) == stage.ticks[-1] == 1
    stage.finish("a")
    stage.units.pop(0)
    turn(loop)
    assert [unit.record.text for unit in stage.units] == ["b", "c"]


def test_credit_that_one_record_uses_up_is_not_exceeded_within_a_round() -> None:
    class Weighing(HandStage):
        """Takes records until their weight is three, as for records of several queries."""

        def credit(self) -> Credit:
            weight = sum(len(unit.record.text or "") for unit in self.units)
            return Credit(records=self.credit_records if weight < 3 else 0, size_bytes=1_000_000)

    bench, stage = Bench(), Weighing()
    loop, _ = bench.loop(stage)
    bench.publish("a", "bbb", "c", "d", "e")
    turn(loop, 5)
    assert [unit.record.text for unit in stage.units] == ["a", "bbb"]


def test_a_bad_record_becomes_a_dead_letter_with_its_reason() -> None:
    bench, stage = Bench(), HandStage()
    loop, _ = bench.loop(stage)
    bench.broker.append(
        "rag.queries.v1",
        b'{"query_id": "q-7", "top_k": "many"}',
        headers=(("own", b"1"),),
        partition=0,
    )
    bench.publish("good")
    turn(loop)
    stage.finish("good")
    turn(loop)
    (letter,) = bench.broker.records("rag.queries.v1.dlq")
    assert letter.value == b'{"query_id": "q-7", "top_k": "many"}'
    headers = dict(letter.headers)
    assert headers["own"] == b"1"
    assert headers["rag.errors.exception.class.name"] == b"RecordError.wrong_type"
    assert headers["rag.errors.offset"] == b"0"
    (answer,) = bench.results("rag.retrievals.v1")
    assert json.loads(answer)["status"] == "failed"
    assert json.loads(answer)["error"]["type"] == "wrong_type"
    assert bench.committed() == (2, "")


def unpacked_never(consumer: MemoryConsumer, offset: int) -> None:
    """Makes `consumer` return the record at `offset` as the client does that cannot unpack it."""
    read = consumer.poll

    def poll(timeout_s: float) -> Message | None:
        message = read(timeout_s)
        if message is None or message.source.offset != offset:
            return message
        at = TopicPartition(message.source.topic, message.source.partition)
        return unreadable_batch(at, offset, offset, "Invalid compressed data", 1)

    consumer.poll = poll  # type: ignore[method-assign]


def test_a_batch_that_cannot_be_unpacked_becomes_a_letter_without_bytes() -> None:
    bench, stage = Bench(), HandStage()
    loop, consumer = bench.loop(stage)
    unpacked_never(consumer, 1)
    bench.publish("good", "bomb", "after")
    turn(loop)
    stage.finish("good", "after")
    turn(loop)
    (letter,) = bench.broker.records("rag.queries.v1.dlq")
    headers = dict(letter.headers)
    assert letter.value is None
    assert headers["rag.errors.exception.class.name"] == b"RecordError.unreadable"
    assert headers["rag.errors.offset"] == b"1"
    assert b"rag.queries.v1[0], offsets 1 to 1" in (headers["rag.errors.exception.message"] or b"")
    assert bench.committed() == (3, "")


def test_a_batch_of_an_internal_topic_that_cannot_be_unpacked_stops_consumption() -> None:
    bench, stage = Retries(), HandStage()
    loop, consumer = bench.loop(stage)
    unpacked_never(consumer, 1)
    bench.publish("good", "bomb", "after")
    turn(loop)
    assert isinstance(loop.failure, DeploymentError)
    assert "offsets 1 to 1, cannot be unpacked" in str(loop.failure)
    assert [unit.record.text for unit in stage.units] == ["good"]


def test_a_partition_that_cannot_be_read_is_reported_until_it_is_read_again() -> None:
    bench, stage = Bench(), HandStage()
    loop, _ = bench.loop(stage)
    turn(loop)
    at = TopicPartition("rag.queries.v1", 0)
    loop.taking.fetch_failed(at, "Invalid compressed data")
    bench.wait(loop)
    assert loop.not_ready() == (), "one error is passing"
    loop.taking.fetch_failed(at, "Invalid compressed data")
    bench.wait(loop)
    assert loop.not_ready() == ("rag.queries.v1[0] cannot be read: Invalid compressed data",)
    errors = bench.metrics.registry.get_sample_value(
        "carpool_fetch_errors_total", {"topic": at.topic, "partition": "0"}
    )
    assert errors == 2
    bench.publish("good")
    turn(loop)
    bench.wait(loop)
    assert loop.not_ready() == ()


def test_a_partition_without_its_next_record_waits_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, stage = Bench(), HandStage()
    at = TopicPartition("rag.queries.v1", 0)
    bench.loop(HandStage())[1].commit_now({at: Position(5, "")})
    bench.broker.groups[GROUP].members.clear()
    loop, consumer = bench.loop(stage)
    bench.publish("gone")
    bench.publish("good", partition=1)
    turn(loop)
    bench.wait(loop)
    assert [unit.record.text for unit in stage.units] == ["good"]
    with monkeypatch.context() as patched:
        patched.setattr(consumer, "waiting", lambda: {at: 7})  # as librdkafka counts it
        bench.publish("better", partition=1)
        turn(loop)
    assert stage.ticks[-1] == 0, "no window waits for records that do not come"
    (reason,) = loop.not_ready()
    assert "beyond the end" in reason
    for _ in range(100):
        bench.wait(loop)
    assert loop.not_ready() == (reason,)


def test_an_unexpected_exception_while_decoding_ends_its_record_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def decode(message: Message) -> Query:
        if message.source.offset == 1:
            raise TypeError("a fault of ours")
        return read_query(message)

    monkeypatch.setattr("tests.loop.support.read_query", decode)
    bench, stage = Bench(), HandStage()
    loop, _ = bench.loop(stage)
    bench.publish("good", '{"query_id":"q1","text":"why?"}', "after")
    turn(loop)
    stage.finish("good", "after")
    turn(loop)
    (letter,) = bench.broker.records("rag.queries.v1.dlq")
    assert b"TypeError: a fault of ours" in (
        dict(letter.headers)["rag.errors.exception.message"] or b""
    )
    (answer,) = bench.broker.records("rag.retrievals.v1")
    assert (answer.key, json.loads(answer.value or b"")["status"]) == (b"q1", "failed")
    assert bench.committed() == (3, "")


OWN = Retries.headers


@pytest.mark.parametrize(
    ("value", "headers", "says"),
    [
        (b'{"text": 5}', OWN, r"\$.text"),
        (b"{", OWN, "not JSON"),
        (b'{"text": "a"}', (), "only services write"),
        (b'{"text": "a"}', (*OWN, ("ce_dataschema", b"urn:carpool:query:2")), "query:2"),
        (TWO_SEARCHES % b"-5", OWN, r"\$.journal.other_searches\[0\].top_k"),
    ],
)
def test_an_unreadable_internal_record_stops_consumption_and_loses_nothing(
    value: bytes, headers: Headers, says: str
) -> None:
    bench, stage = Retries(), HandStage()
    loop, _ = bench.loop(stage)
    bench.publish("good")
    bench.broker.append(RETRIES.name, value, partition=0, headers=headers)
    bench.publish("after")
    turn(loop)
    assert isinstance(loop.failure, DeploymentError)
    assert [unit.record.text for unit in stage.units] == ["good"]
    bench.wait(loop)
    (reason,) = loop.not_ready()
    assert re.search(f"cannot be read by this build.*{says}", reason)
    assert "carpool groups skip grouper rag.retries.v1/0/1" in reason
    stage.finish("good")
    turn(loop)
    assert bench.committed() == (1, ""), "the unreadable record is not passed over"
    assert bench.results("rag.queries.v1.dlq") == []


def test_outputs_that_were_not_written_are_sent_again_before_offsets_move(
    delivery: DeliveryName,
) -> None:
    bench, stage, loop, _ = with_taken(Bench(), "a")
    if delivery == "at_least_once":
        bench.broker.break_next("produce", RetryableError("broker is away"))
    else:
        bench.broker.break_next("produce_in_transaction", AbortedError("broker is away"))
    stage.finish("a")
    loop.delivery.step(0)
    assert (bench.results(), bench.committed()) == ([], (None, ""))
    bench.wait(loop)
    assert (bench.results(), bench.committed()) == (["a/0"], (1, ""))
    assert len(stage.units) == 1, "the outputs were in memory: the unit is not offered again"


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("write", DeploymentError("too large")),
        ("commit_offsets", DeploymentError("no right on the group")),
        ("poll", DeploymentError("no right on the topic")),
        ("poll", RetryableError("offsets cannot be read")),
        ("subscribe", ConfigError("no such topic")),
    ],
    ids=str,
)
def test_a_refusal_is_tried_again_with_a_growing_pause_until_it_has_passed(
    delivery: DeliveryName, where: str, error: CarpoolError, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, stage, loop, consumer = with_taken(Bench(), "a")
    is_exact, refused_at, is_refused = delivery == "exactly_once", list[int](), True

    def refuse(_: object = None) -> None:
        if is_refused:
            refused_at.append(bench.clock.now_us())
            raise error

    def refusing(inner: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: (refuse(), inner(*args))[1]

    serve = bench.broker.serve
    if where in ("poll", "subscribe"):
        monkeypatch.setattr(consumer, where, refusing(getattr(consumer, where)))
        if where == "subscribe":
            monkeypatch.setattr(consumer, "poll", refusing(consumer.poll))
    else:
        calls = {"write": ("commit" if is_exact else "produce")}
        broken = calls.get(where, "send_offsets" if is_exact else where)
        monkeypatch.setattr(
            bench.broker, "serve", lambda call: (call == broken and refuse(), serve(call))[1]
        )
    stage.finish("a")
    bench.wait(loop)
    for _ in range(20):
        bench.wait(loop, 500_000)
        assert any(f"{error}; nothing is lost: it is tried again" in r for r in loop.not_ready())
    assert loop.failure is None
    assert where in ("poll", "subscribe") or len(refused_at) <= 6, "the pause grows"
    is_refused = False
    bench.publish("b")
    for _ in range(60):
        bench.wait(loop)
    if stage.units and stage.units[-1].record.text == "a":
        stage.finish("a")
    stage.finish("b")
    bench.wait(loop)
    bench.wait(loop)
    assert loop.not_ready() == ()
    assert (sorted(bench.results()), bench.committed()) == (["a/0", "b/0"], (2, ""))


@pytest.mark.parametrize("refusals", [1, 2], ids=["once", "also when it moves"])
def test_what_was_refused_is_not_sent_again_after_its_partition_has_moved_away(
    delivery: DeliveryName, refusals: int
) -> None:
    bench, stage, loop, consumer = with_taken(Bench(), "a")
    bench.publish("x", partition=1)
    turn(loop)
    call: Call = "produce" if delivery == "at_least_once" else "commit"
    for _ in range(refusals):
        bench.broker.break_next(call, DeploymentError("too large"))
    stage.finish("a", "x")
    turn(loop)
    stage.units.clear()
    bench.broker.assign(GROUP, {1: consumer})
    loop.step()
    for _ in range(3):
        bench.wait(loop)
    is_committed = bench.committed(0) == (1, "")
    assert is_committed == ("a/0" in bench.results()), "else another member does this work"
    assert [unit.record.text for unit in stage.units] == ([] if is_committed else ["x"])
    stage.finish(*(unit.record.text for unit in stage.units))
    bench.wait(loop)
    assert bench.committed(1) == (1, "")


def test_hints_are_sent_and_acknowledge_nothing() -> None:
    bench, _, loop, _ = with_taken(Bench(), "a")
    loop.sink.hint(result("draft"))
    turn(loop)
    assert (bench.results(), bench.committed()) == (["draft"], (None, ""))


def test_stop_drains_units_in_flight_and_leaves_the_group() -> None:
    bench = Bench()

    class Draining(HandStage):
        def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
            if self.draining and self.units:
                self.finish(self.units[0].record.text or "")
                self.units.pop(0)
            return None

    stage = Draining()
    runner, _ = bench.loop(stage, is_stepped=False)
    bench.publish("a", "b")
    polls = iter(range(10_000))

    original = stage.credit

    def credit_then_stop() -> object:
        if next(polls) == 5:
            runner.stop()
        return original()

    stage.credit = credit_then_stop
    runner.run(drain_us=10**12)
    assert sorted(bench.results()) == ["a/0", "b/0"]
    assert bench.committed() == (2, "")
    assert bench.broker.groups["carpool-test"].members == []


def test_a_rejected_unit_ends_with_all_its_parts() -> None:
    bench, stage, loop, _ = with_taken(Bench(), "a", parts=lambda _: 3)
    loop.sink.refuse(stage.unit("a"), RecordError("wrong_dimension", "12, not 384", query_id="a"))
    turn(loop)
    assert bench.committed() == (1, "")
    assert len(bench.results("rag.queries.v1.dlq")) == 1


@pytest.mark.parametrize("is_late", [False, True])
def test_late_outputs_replace_an_answer_whose_commit_begins_too_late(is_late: bool) -> None:
    bench, stage, loop, _ = with_taken(Bench(), "a")
    late = LateOutputs(
        after_us=bench.clock.now_us() + 1_000_000, outputs=lambda: (result("expired"),)
    )
    loop.sink.done(Done(parts=((stage.unit("a").id, 0),), outputs=(result("ok"),), late=late))
    bench.clock.sleep(1_000_000 if is_late else 0)
    turn(loop)
    assert (bench.results(), bench.committed()) == (["expired" if is_late else "ok"], (1, ""))

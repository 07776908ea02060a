"""However work overlaps or is lost: every query ends once, as if queries were processed one at a
time, and of equal prompts one is generated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from carpool.kafka.records import Message, Output, TopicPartition
from carpool.loop.stage import Unit
from carpool.telemetry.metrics import Metrics
from generator.dedup.stage import DedupStage
from generator.plan.dedup_actions import is_reusable
from generator.settings import GeneratorSettings
from schemas.answer import Answer, Status
from schemas.codec import decode
from schemas.record import Source
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, QUERIES, RETRIEVALS
from tests.clocks import HandClock
from tests.generator.dedup_support import Within, made
from tests.generator.stage import ListSink, unit
from tests.memory_broker.broker import MemoryBroker
from tests.memory_broker.table_log import MemoryAnswersLog

PARTITIONS = 2
Outcome = Literal["ok", "partial", "failed", "retried"]


@dataclass(frozen=True)
class Published:
    """A record, and the outcome of the model each time. "retried": it ends without an answer."""

    retrieval: Retrieval
    partition: int
    outcome: Outcome


def key_of(retrieval: Retrieval) -> str | None:
    """Questions in capitals refuse to be answered again."""
    text = retrieval.query.text or ""
    return None if text.isupper() else f"key of {text}"


class World:
    """A log of retrievals, a log of answers, and a service between them that may crash."""

    def __init__(self, *, has_keys: bool) -> None:
        self.key_of = key_of if has_keys else lambda _: None
        self.broker = MemoryBroker(
            HandClock(), {ANSWERS.name: PARTITIONS, RETRIEVALS.name: PARTITIONS}
        )
        self.records: list[Published] = []
        self.complete: set[int] = set()
        self.next_unit = 0
        self.born()

    def born(self) -> None:
        """A process starts, without the units in progress of the one before."""
        self.within, self.sink = Within(self.key_of), ListSink()
        self.in_progress: dict[int, int] = {}  # unit id to index of its record
        self.read_to = dict.fromkeys(range(PARTITIONS), 0)
        self.assigned: set[int] = set()
        metrics = Metrics(CollectorRegistry())
        reader = MemoryAnswersLog(self.broker)
        self.stage = DedupStage(self.within, reader, GeneratorSettings(), metrics, HandClock())
        self.stage.start(self.sink)

    def publish(self, query_id: str, text: str, outcome: Outcome) -> None:
        index = len(self.records)
        source = Source(topic=QUERIES.name, partition=0, offset=index, timestamp_ms=index)
        retrieval = unit(text, query={"query_id": query_id}, source=source).record
        partition = self.broker.place(ANSWERS.name, query_id.encode(), None).partition
        self.records.append(Published(retrieval, partition, outcome))

    def assign(self, partition: int) -> None:
        if partition not in self.assigned:
            self.assigned.add(partition)
            self.read_to[partition] = 0
            self.stage.assigned(frozenset({TopicPartition(RETRIEVALS.name, partition)}))

    def revoke(self, partition: int) -> None:
        self.assigned.discard(partition)
        gone = {
            id
            for id, index in self.in_progress.items()
            if self.records[index].partition == partition
        }
        for id in gone:
            del self.in_progress[id]
        self.sink.dones = [done for done in self.sink.dones if done.parts[0][0] not in gone]
        place = TopicPartition(RETRIEVALS.name, partition)
        self.stage.revoke(frozenset(gone), frozenset({place}))

    def offer(self, partition: int) -> bool:
        """Offers the next record of a partition that is not complete."""
        if partition not in self.assigned:
            return False
        for index in range(self.read_to[partition], len(self.records)):
            record = self.records[index]
            if record.partition == partition and index not in self.complete:
                self.read_to[partition] = index + 1
                self.next_unit += 1
                place = Source(topic=RETRIEVALS.name, partition=partition, offset=index)
                message = Message(source=place, key=b"k", value=b"v", headers=(), received_us=0)
                offered = Unit(id=self.next_unit, record=record.retrieval, message=message)
                self.in_progress[offered.id] = index
                self.stage.offer(offered, 0)
                return True
        return False

    def finish(self, choice: int) -> None:
        """Finishes one of the units in the stage within."""
        if self.within.units:
            id = sorted(self.within.units)[choice % len(self.within.units)]
            record = self.records[self.in_progress[id]]
            self.within.finish(id, _output(record, self.key_of(record.retrieval)))

    def commit(self, choice: int, *, dies_before: bool = False) -> None:
        """Writes one finished result, then completes its record, or crashes before that."""
        if self.sink.dones:
            done = self.sink.dones.pop(choice % len(self.sink.dones))
            for output in done.outputs:
                if output.topic == ANSWERS.name:
                    self.broker.append(
                        output.topic,
                        output.value,
                        key=output.key,
                        partition=output.partition,
                        headers=output.headers,
                    )
            if dies_before and any(output.topic == ANSWERS.name for output in done.outputs):
                self.born()
            else:
                self.complete.add(self.in_progress.pop(done.parts[0][0]))

    def work(self, choice: int) -> None:
        """Offers, follows, ticks and finishes; writes nothing."""
        for partition in range(PARTITIONS):
            self.offer(partition)
        self.follow()
        self.tick()
        self.finish(choice)

    def follow(self) -> None:
        if self.assigned:
            self.stage.table.step()

    def tick(self) -> None:
        self.stage.tick(0, 0)

    def run(self, script: Sequence[tuple[Any, ...]]) -> None:
        """Takes the steps of a script; the books are checked after each."""
        for name, *arguments in script:
            match name:
                case "offer":
                    self.offer(arguments[0] % PARTITIONS)
                case "crash":
                    self.born()
                    self.assign(0)
                case "dies":
                    self.work(0)
                    self.commit(0, dies_before=True)
                    self.assign_all()
                case _:
                    getattr(self, name)(*arguments)
            self.check()

    def check(self) -> None:
        self.stage.check_integrity()
        keys = [self.key_of(unit.record) for unit in self.within.units.values()]
        at_work = [key for key in keys if key is not None]
        assert len(at_work) == len(set(at_work)), "one generation for one prompt"

    def assign_all(self) -> None:
        for partition in range(PARTITIONS):
            self.assign(partition)

    def settle(self) -> None:
        """Assigns all partitions, and processes everything to its end."""
        self.assign_all()
        for _ in range(6 * len(self.records) + 10):
            self.work(0)
            self.commit(0)
            self.check()
        assert self.complete == set(range(len(self.records)))
        plan = self.stage._plan
        assert not (plan._queries or plan._same_id or plan._same_prompt), "no query is left"

    def answers(self) -> dict[int, list[Answer]]:
        """The answers in the log, by record."""
        found: dict[int, list[Answer]] = {}
        for message in self.broker.records(ANSWERS.name):
            answer = decode(Answer, message.value, message.headers)
            assert answer.source is not None
            found.setdefault(answer.source.offset, []).append(answer)
        return found


def _output(record: Published, prompt_key: str | None) -> Output:
    if record.outcome == "retried":
        return Output(topic=QUERIES.name, key=b"k", value=b"again")
    return made(record.retrieval, record.outcome, prompt_key=prompt_key)


def one_at_a_time(records: Sequence[Published]) -> dict[int, tuple[Status, bool, str | None]]:
    """The model: (status, replayed, text) of each record that gets an answer."""
    kept: dict[str, tuple[str | None, str]] = {}
    ends: dict[int, tuple[Status, bool, str | None]] = {}
    for index, record in enumerate(records):
        query = record.retrieval.query
        if query.query_id in kept:
            asked, text = kept[query.query_id]
            ends[index] = ("ok", True, text) if asked == query.text else ("failed", False, None)
        elif record.outcome != "retried":
            text = f"made for {index}"
            ends[index] = (record.outcome, False, text)
            if record.outcome == "ok":
                kept[query.query_id] = (query.text, text)
    return ends


def lost_retries(
    records: Sequence[Published],
    ends: Mapping[int, Sequence[tuple[Status, bool, str | None]]],
    expected: Mapping[int, object],
) -> dict[int, tuple[Status, bool, str | None]]:
    """The ends of records that were offered again although they are retried.

    Their partition was revoked before the retry was written, and after a later record of their id
    was answered, so they end by that answer.
    """
    lost = {offset: ends[offset][0] for offset in ends.keys() - expected.keys()}
    for offset, (status, is_replayed, _) in lost.items():
        assert records[offset].outcome == "retried"
        assert status == "failed" or is_replayed
    return lost


def check_reuse(world: World) -> None:
    """Each record ends by its own outcome, or an answer that its prompt or its id has."""
    for offset, (answer,) in world.answers().items():
        record = world.records[offset]
        assert answer.query_id == record.retrieval.query.query_id
        if answer.error is not None:
            assert answer.error.type == "conflict"
        elif not answer.replayed:
            assert (answer.status, answer.answer) == (record.outcome, f"made for {offset}")
        else:
            made_for = int(str(answer.answer).rpartition(" ")[2])
            first = world.records[made_for].retrieval.query
            assert answer.status == world.records[made_for].outcome in ("ok", "partial")
            assert first.text == record.retrieval.query.text, "an equal prompt"
            assert key_of(record.retrieval) or first.query_id == answer.query_id
    answered = set(world.answers())
    for offset, record in enumerate(world.records):
        assert offset in answered or record.outcome == "retried"


publishes = st.tuples(
    st.just("publish"),
    st.sampled_from("abcd"),
    st.sampled_from(["why?", "why?", "who?", "WHO?"]),
    st.sampled_from(["ok", "ok", "partial", "failed", "retried"]),
)
numbers = st.integers(0, 3)
moves = st.tuples(st.sampled_from(["offer", "finish", "commit", "work"]), numbers)
looks = st.tuples(st.sampled_from(["follow", "tick"]))
deaths = st.just(("dies",))
disturbances = st.one_of(
    st.tuples(st.sampled_from(["assign", "revoke"]), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.sampled_from(["crash", "dies"])),
)
calm = st.one_of(publishes, moves, moves, moves, looks, looks, deaths)
steps = st.one_of(publishes, moves, moves, moves, looks, looks, disturbances)


def scripts(steps: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    return st.lists(steps, min_size=10, max_size=60)


def outcome_of(
    first: Sequence[tuple[Any, ...]], script: Sequence[tuple[Any, ...]], *, has_keys: bool
) -> World:
    world = World(has_keys=has_keys)
    for _, query_id, text, outcome in first:
        world.publish(query_id, text, outcome)
    world.assign_all()
    world.follow()
    world.run(script)
    world.settle()
    return world


@settings(max_examples=80)
@example(
    [("publish", "a", "why?", "retried"), ("publish", "a", "why?", "ok")],
    [
        *[("offer", 0)] * 4,
        ("offer", 1),
        ("finish", 0),
        ("work", 0),
        ("commit", 1),
        ("publish", "a", "why?", "ok"),
        ("revoke", 1),
    ],
)
@given(st.lists(publishes, min_size=2, max_size=6), scripts(steps))
def test_every_record_ends_as_if_one_were_processed_at_a_time(
    first: list[tuple[Any, ...]], script: list[tuple[Any, ...]]
) -> None:
    world = outcome_of(first, script, has_keys=False)
    ends = {
        offset: [(answer.status, answer.replayed, answer.answer) for answer in answers]
        for offset, answers in world.answers().items()
    }
    expected = one_at_a_time(world.records)
    expected |= lost_retries(world.records, ends, expected)
    assert ends == {offset: [end] for offset, end in expected.items()}


@settings(max_examples=80)
@example(
    [("publish", "a", "why?", "ok"), ("publish", "d", "who?", "ok")],
    [
        ("publish", "d", "why?", "ok"),
        ("work", 0),
        ("commit", 0),
        ("dies",),
        ("crash",),
        ("follow",),
    ],
)
@given(st.lists(publishes, min_size=3, max_size=8), scripts(calm) | scripts(steps))
def test_every_query_ends_once_by_its_own_answer_or_that_of_an_equal_prompt(
    first: list[tuple[Any, ...]], script: list[tuple[Any, ...]]
) -> None:
    """A prompt with an answer is not generated again, also after a crash."""
    world = outcome_of(first, script, has_keys=True)
    check_reuse(world)
    if {"assign", "revoke", "crash"}.isdisjoint(name for name, *_ in script):
        made = [answer for answers in world.answers().values() for answer in answers]
        keys = Counter(answer.prompt_key for answer in made if is_reusable(answer))
        assert set(keys.values()) <= {1}, keys

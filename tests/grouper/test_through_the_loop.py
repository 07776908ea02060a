"""The grouper behind the real loop and delivery, on the broker in memory, while a second member
joins and leaves.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

from carpool.clock import SystemClock
from carpool.disk.settings import IndexSettings
from carpool.embedding import EmbeddingSettings
from carpool.kafka.records import Message, TopicPartition
from carpool.loop.delivery.at_least_once import AtLeastOnceDelivery
from carpool.loop.loop import Loop
from carpool.loop.priority.intake_queues import Intake
from carpool.telemetry.metrics import Metrics
from grouper.service import build_stage
from grouper.settings import GrouperSettings
from schemas.codec import decode, decode_query
from schemas.group import Group
from schemas.query import Query
from schemas.topics import ANSWERS, GROUPS, QUERIES, QUERIES_DEAD
from tests.grouper.stage import DIMENSION, WORDS, write_index
from tests.memory_broker import MemoryBroker, MemoryConsumer, MemoryProducer
from tests.waiting import wait_until

PARTITIONS = 4


def query_of(message: Message) -> Query:
    return decode_query(message.value, message.headers, message.source)


class Member:
    """One grouper of the consumer group, stepped by the test; its worker and its delivery have
    threads of their own.
    """

    def __init__(self, broker: MemoryBroker, folder: Path) -> None:
        metrics = Metrics()
        self.stage = build_stage(
            GrouperSettings(window_queries_min=3, window_queries_max=8, intake_queries_max=64),
            IndexSettings(dir=str(folder)),
            EmbeddingSettings(model=f"hashing:{DIMENSION}"),
            metrics,
            broker.clock,
        )
        self.loop = Loop[Query](
            name="grouper",
            group="carpool-grouper",
            intake=Intake(topic=QUERIES.name, decode=query_of, bad_input="refuse"),
            stage=self.stage,
            consumer=MemoryConsumer(broker, "carpool-grouper"),
            make_delivery=lambda context: AtLeastOnceDelivery(
                context,
                make_producer=lambda: MemoryProducer(broker),
                make_hint_producer=lambda: MemoryProducer(broker),
                commit_interval_ms=1,
            ),
            clock=broker.clock,
            metrics=metrics,
        )
        self.loop.start()


def test_every_query_is_grouped_and_committed_while_members_come_and_go(tmp_path: Path) -> None:
    write_index(tmp_path)
    names = (QUERIES.name, QUERIES_DEAD.name, GROUPS.name, ANSWERS.name)
    broker = MemoryBroker(
        SystemClock(), {name: 1 if name == GROUPS.name else PARTITIONS for name in names}
    )
    for number in range(200):
        text = f"{WORDS[number % len(WORDS)]} {number}"
        value = b"{" if number % 50 == 7 else text.encode()
        broker.append(QUERIES.name, value, partition=number % PARTITIONS)
    members = [Member(broker, tmp_path)]

    def is_done() -> bool:
        ends = {TopicPartition(QUERIES.name, n): 50 for n in range(PARTITIONS)}
        return {
            at: position.offset for at, position in broker.committed("carpool-grouper").items()
        } == ends

    steps = itertools.count(1)

    def stepped() -> bool:
        for member in members:
            member.loop.step()
            assert member.loop.failure is None
        match next(steps):
            case 3:
                members.append(Member(broker, tmp_path))
            case 30:
                members.pop(0).loop.close()
        return is_done()

    wait_until(stepped, "all queries are committed", every_s=0.0005)
    for member in members:
        member.stage.check_integrity()
        member.loop.close()
    groups = [
        decode(Group, message.value, message.headers) for message in broker.records(GROUPS.name)
    ]
    assert len({group.grouper for group in groups}) == 2, "both members had their share"
    grouped = Counter(
        (query.source.partition, query.source.offset) for group in groups for query in group.queries
    )
    bad = {(number % PARTITIONS, number // PARTITIONS) for number in range(200) if number % 50 == 7}
    assert len(bad) == 4
    assert grouped.keys() == {(n % PARTITIONS, n // PARTITIONS) for n in range(200)} - bad
    dead = {message.source.partition for message in broker.records(QUERIES_DEAD.name)}
    assert dead == {partition for partition, _ in bad}

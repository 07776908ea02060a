"""The follower of the corpus on a broker: which base it calls newer than its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

from carpool.clock import SystemClock
from carpool.corpus.fold import Fold
from carpool.corpus.follower import RECORDS, CorpusFollower, Received
from carpool.kafka.admin import create_topics
from carpool.kafka.librdkafka import LibrdkafkaProducer
from carpool.kafka.records import Output
from carpool.kafka.settings import KafkaSettings
from schemas.codec import encode
from schemas.document import BaseWanted, DocumentVectors, Position
from schemas.record import Record
from schemas.topics import BASES, VECTORS
from tests.records import a_base
from tests.waiting import WAIT_S, wait_until

BASES_COUNT = 4 * RECORDS


class NoDocuments:
    """Implements `Folded` and `BaseDocuments`."""

    def add(self, records: Sequence[Received]) -> bool:
        raise NotImplementedError

    def publish(self) -> bool:
        return True

    def passages_of(self, key: bytes) -> range:
        return range(0)


class SomeRoom(NoDocuments):
    """Has room for the first `room` records."""

    def __init__(self) -> None:
        self.room, self.added = 2, list[int]()

    def add(self, records: Sequence[Received]) -> bool:
        if len(self.added) + len(records) > self.room:
            return False
        self.added += [each.record.offset for each in records]
        return True


def write(kafka: KafkaSettings, *records: Record, topic: str = BASES.name) -> None:
    producer = LibrdkafkaProducer(kafka)
    for record in records:
        value, headers = encode(record, event_id="e", source="t", time_us=0)
        assert producer.produce(
            Output(topic=topic, key=b"key", value=value, headers=headers, partition=0),
            lambda _: None,
        )
    assert not producer.close(WAIT_S)


def test_bases_that_were_announced_before_its_own_are_not_newer(embedded_bootstrap: str) -> None:
    kafka = KafkaSettings(bootstrap=embedded_bootstrap, prefix=f"f{time.monotonic_ns()}.")
    create_topics(kafka)
    names = [f"b-{number}" for number in range(BASES_COUNT)]
    first = a_base(names[0], predecessor=None, position={}, vectors={})
    chain = [first] + [
        a_base(name, predecessor=before, position={}, vectors={}, requests=1)
        for before, name in pairwise(names)
    ]
    write(kafka, BaseWanted(asked_ms=1), *chain)
    none = NoDocuments()
    follower = CorpusFollower(none, Fold(none, {}), chain[-1], kafka, SystemClock())
    newer, wanted = set[str](), set[str]()

    def is_seen(name: str, among: set[str]) -> bool:
        newer.update([base.name] if (base := follower.newer_base) is not None else [])
        wanted.update([] if follower.wanted is None else [names[-1]])
        return name in among

    follower.start()
    until_s = time.monotonic() + 1
    wait_until(lambda: is_seen("", newer) or time.monotonic() > until_s, every_s=0)
    assert not newer | wanted
    write(kafka, BaseWanted(asked_ms=2))
    wait_until(lambda: is_seen(names[-1], wanted))
    heard = follower.requests
    empty: dict[str, Position] = {"position": {}, "vectors": {}}
    write(kafka, a_base("cut before", predecessor=names[-1], requests=heard - 1, **empty))
    wait_until(lambda: is_seen("cut before", newer))
    assert follower.wanted is not None
    write(kafka, a_base("next", predecessor="cut before", requests=heard, **empty))
    wait_until(lambda: is_seen("next", newer))
    follower.close()
    assert newer == {"cut before", "next"} and follower.wanted is None


def test_one_without_room_hears_of_bases_and_goes_on_where_it_stopped(bootstrap: str) -> None:
    kafka = KafkaSettings(bootstrap=bootstrap, prefix=f"f{time.monotonic_ns()}.")
    create_topics(kafka)
    empty: dict[str, Position] = {"position": {}, "vectors": {}}
    write(kafka, a_base("first", predecessor=None, **empty))
    vectors = [DocumentVectors(offset=number, deleted=True) for number in range(3 * RECORDS)]
    write(kafka, *vectors[:RECORDS], topic=VECTORS.name)
    some = SomeRoom()
    base = a_base("first", predecessor=None, **empty)
    follower = CorpusFollower(some, Fold(some, {}), base, kafka, SystemClock())
    follower.full = "no room"
    follower.start()
    wait_until(lambda: "no room" in follower.not_ready() + follower.notes())
    write(kafka, a_base("next", predecessor="first", **empty))
    wait_until(lambda: follower.newer_base is not None)
    write(kafka, *vectors[RECORDS:], topic=VECTORS.name)
    assert some.added == [0, 1]
    some.room = len(vectors)
    wait_until(lambda: not follower.not_ready())
    wait_until(lambda: len(some.added) == len(vectors))
    follower.close()
    assert some.added == [each.offset for each in vectors]

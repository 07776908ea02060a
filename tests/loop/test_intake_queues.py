"""Records of several priority classes: the order, the limits, and no starvation."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from carpool.kafka.records import Message, TopicPartition
from carpool.loop.priority.intake_queues import Intake, IntakeQueues, PriorityClass
from carpool.run_service import of_all_topics
from schemas.topics import QUERIES, RETRIES, RETRIES_BATCH, read_with
from tests.records import a_message

URGENT, BATCH = "rag.queries.v1", "rag.queries.batch.v1"
CLASSES = (
    PriorityClass(topic=URGENT, weight=16),
    PriorityClass(topic=BATCH, weight=1, unfinished_max=50),
)


def message(topic: str, offset: int, size_bytes: int = 0, partition: int = 0) -> Message:
    return a_message(topic, offset, partition=partition, value=b"x" * size_bytes)


def filled(urgent: int, batch: int, **bounds: int) -> IntakeQueues:
    queues = IntakeQueues(CLASSES, **bounds)
    for offset in range(batch):
        queues.add(message(BATCH, offset))
    for offset in range(urgent):
        queues.add(message(URGENT, offset))
    return queues


def test_while_both_classes_have_records_batch_gets_its_share() -> None:
    queues = filled(urgent=200, batch=200)
    taken = Counter(
        each.source.topic for each in (queues.next({}) for _ in range(170)) if each is not None
    )
    assert 8 <= taken[BATCH] <= 16  # one in 17 is 10, and turns are of 8


def test_steps_of_workflows_are_taken_in_before_new_questions_of_their_class() -> None:
    new = Intake(topic=URGENT, decode=lambda message: message)
    intake = of_all_topics(new, read_with(QUERIES), queries_max=1_000)
    queues = IntakeQueues(
        (PriorityClass(topic=URGENT, weight=intake.weight), *intake.extra_classes)
    )
    for topic in intake.topics:
        for offset in range(1_000):
            queues.add(message(topic, offset, size_bytes=7_000))
    first = [queues.next({}) for _ in range(1_200)]
    taken = Counter(each.source.topic for each in first if each is not None)
    assert taken[RETRIES.name] > 6 * taken[URGENT] > 0
    assert taken[URGENT] > 8 * taken[BATCH] > 0
    assert taken[RETRIES_BATCH.name] > 4 * taken[BATCH]


def test_a_queue_full_of_records_or_bytes_pauses_only_its_topic_until_it_is_half_empty() -> None:
    queues = filled(urgent=1, batch=8, records_max=8)
    assert queues.full == {BATCH}
    while queues.by_partition()[TopicPartition(BATCH, 0)] > 5:
        queues.next({})
    assert queues.full == {BATCH}
    queues.next({})
    assert queues.full == set()
    queues = IntakeQueues(CLASSES, bytes_max=1_000)
    queues.add(message(BATCH, 0, size_bytes=1_200))
    assert queues.full == {BATCH}
    assert queues.next({}) is not None
    assert queues.full == set()


def test_partitions_alternate_in_any_order_of_fetches() -> None:
    queues = IntakeQueues(CLASSES)
    for partition, records in ((0, 5), (1, 2), (2, 1)):
        for number in range(records):
            queues.add(message(URGENT, number, 10, partition=partition))
    taken = [each.source for each in (queues.next({}) for _ in range(8)) if each is not None]
    assert [source.partition for source in taken] == [0, 1, 2, 0, 1, 0, 0, 0]
    assert [source.offset for source in taken if source.partition == 0] == [0, 1, 2, 3, 4]


def test_records_of_a_revoked_partition_are_dropped() -> None:
    queues = IntakeQueues(CLASSES)
    for partition in (0, 1):
        queues.add(message(URGENT, 0, 10, partition=partition))
    queues.forget(frozenset({TopicPartition(URGENT, 0), TopicPartition(BATCH, 1)}))
    queues.check_integrity()
    taken = queues.next({})
    assert taken is not None and taken.source.partition == 1
    assert queues.next({}) is None
    assert queues.records == 0


TOPICS = st.sampled_from([URGENT, BATCH])
moves = st.lists(
    st.one_of(
        st.tuples(st.just("add"), TOPICS, st.integers(0, 3_000), st.integers(0, 2)),
        st.tuples(st.just("next"), TOPICS, st.just(0), st.just(0)),
        st.tuples(st.just("end"), TOPICS, st.just(0), st.just(0)),
    ),
    max_size=150,
)


@given(moves)
def test_every_record_is_returned_once_in_order_and_as_soon_as_it_may(
    script: list[tuple[str, str, int, int]],
) -> None:
    classes = (CLASSES[0], PriorityClass(topic=BATCH, unfinished_max=3))
    queues = IntakeQueues(classes, records_max=8, bytes_max=10_000)
    waiting: dict[str, dict[int, list[int]]] = {URGENT: {}, BATCH: {}}
    parts = Counter({URGENT: 0, BATCH: 0})
    for number, (move, topic, size, partition) in enumerate(script):
        if move == "add":
            queues.add(message(topic, number, size, partition=partition))
            waiting[topic].setdefault(partition, []).append(number)
        elif move == "end":
            parts[topic] = max(0, parts[topic] - 1)
        else:
            taken = queues.next(parts)
            some = {topic: any(lists.values()) for topic, lists in waiting.items()}
            assert (taken is not None) == (some[URGENT] or (some[BATCH] and parts[BATCH] < 3))
            if taken is not None:
                source = taken.source
                assert source.offset == waiting[source.topic][source.partition].pop(0)
                parts[source.topic] += 1
        queues.check_integrity()
        assert queues.records == sum(
            len(offsets) for lists in waiting.values() for offsets in lists.values()
        )

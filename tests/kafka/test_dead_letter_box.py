"""Letters at real brokers are replayed once, despite kills and concurrent replays."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest

from carpool.clock import SystemClock
from carpool.dead_letters.box import BATCH_LETTERS_MAX, DeadLetterBox
from carpool.dead_letters.letter import DeadLetter, Reason, Selection, make_letter
from carpool.errors import CarpoolError, FencedError
from carpool.kafka.admin import create_topics
from carpool.kafka.librdkafka import LibrdkafkaProducer, LibrdkafkaTransactionalProducer
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import read_topic
from schemas.record import Source
from schemas.topics import QUERIES
from tests.waiting import WAIT_S

LETTERS = 1_200
assert LETTERS > 2 * BATCH_LETTERS_MAX, "three transactions"

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(kafka_bootstrap: str) -> KafkaSettings:
    """Topics of the test's own with letters in them."""
    prefix = f"box-{uuid.uuid4().hex[:8]}"
    found = KafkaSettings(bootstrap=kafka_bootstrap, partitions=2, prefix=prefix)
    create_topics(found)
    producer, reports = LibrdkafkaProducer(found), list[object]()
    reason = Reason(
        group="g", stage="grouper", attempts=1, class_name="RecordError.not_json", message="no"
    )
    for number in range(LETTERS):
        source = Source(topic=QUERIES.name, partition=number % 2, offset=number)
        value = b"%d" % number
        letter = make_letter(source=source, key=b"k", value=value, headers=(), reason=reason)
        assert producer.produce(letter, reports.append)
    assert producer.close(WAIT_S) == 0
    return found


def replayed(settings: KafkaSettings) -> Counter[int]:
    return Counter(
        int(message.value or b"-1")
        for message in read_topic(settings, SystemClock(), QUERIES.name, name="test")
    )


def replay(
    settings: KafkaSettings, *, begun: threading.Event | None = None, die_after: int | None = None
) -> None:
    """Replays all unmarked letters; dies in its `die_after`th transaction before the commit."""
    box = DeadLetterBox(settings, SystemClock())
    producer = LibrdkafkaTransactionalProducer(settings, settings.group_of("dlq"))
    producer.start()
    if begun is not None:
        begun.set()
    if die_after is not None:
        commits, commit = iter(range(10**9)), producer.commit

        def die() -> None:
            if next(commits) == die_after:
                raise KeyboardInterrupt
            commit()

        producer.commit = die  # type: ignore[method-assign]
    letters: Iterator[DeadLetter] = box.selected(Selection(), box.marks())
    box.mark(letters, "replayed", producer)
    producer.close()


def test_after_a_killed_replay_only_the_remaining_letters_are_replayed(
    settings: KafkaSettings,
) -> None:
    with pytest.raises(KeyboardInterrupt):
        replay(settings, die_after=1)
    replay(settings)
    assert replayed(settings) == Counter(range(LETTERS))
    replay(settings)
    assert replayed(settings) == Counter(range(LETTERS))


def test_two_replays_at_once_replay_no_letter_twice(settings: KafkaSettings) -> None:
    begun, failures = threading.Event(), list[CarpoolError]()

    def first() -> None:
        try:
            replay(settings, begun=begun)
        except FencedError as error:
            failures.append(error)

    one = threading.Thread(target=first)
    one.start()
    assert begun.wait(WAIT_S)
    replay(settings)
    one.join(WAIT_S)
    assert not one.is_alive()
    assert replayed(settings) == Counter(range(LETTERS))

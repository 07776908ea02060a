"""Reads the dead letters of a deployment, replays them to their source, and drops them.

Kafka deletes records from the beginning of a partition only, so a letter stays until its retention
ends. A letter that was replayed or dropped gets a mark in `rag.dlq.marks.v1`, which has a longer
retention, and marked letters are skipped. A replayed record and its mark are written in one
transaction, under an id that only one process can have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from carpool.clock import Clock
from carpool.dead_letters.letter import DeadLetter, Place, Selection, read_letter, replay_output
from carpool.errors import AbortedError, ConfigError, RecordError, RetryableError
from carpool.kafka.clients import TransactionalProducerClient
from carpool.kafka.records import Message, Output, TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import SilentBrokersError, TopicReader, read_topic
from schemas.codec import decode, encode
from schemas.deadletter import Action, DeadLetterMark
from schemas.topics import DEAD_LETTER_MARKS, DEAD_LETTER_SUFFIX, TOPICS

BATCH_LETTERS_MAX = 500
BATCH_BYTES_MAX = 4 * 1024 * 1024
"""Limit of one transaction, so that its letters fit in memory."""
TRIES = 5
ONE_RECORD_S = 3.0
READER_NAME = "dlq"

Marks = dict[Place, DeadLetterMark]


@dataclass(frozen=True, kw_only=True)
class Sent:
    """How many letters were marked, and how many were skipped because they were cut."""

    marked: int
    cut: int


class DeadLetterBox:
    """The dead-letter topics of one deployment, by their names without the prefix.

    Every call blocks; not thread-safe. Raises `RetryableError` without brokers.
    """

    def __init__(self, settings: KafkaSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock

    def _reader(self) -> TopicReader:
        return TopicReader(self._settings, self._clock, name=READER_NAME)

    def _read(self, topic: str) -> Iterator[Message]:
        return read_topic(self._settings, self._clock, topic, name=READER_NAME)

    def topics(self) -> tuple[str, ...]:
        """Returns the dead-letter topics. Raises `ConfigError` without the topic of marks."""
        with self._reader() as reader:
            names = reader.topics().keys()
        if DEAD_LETTER_MARKS.name not in names:
            raise ConfigError(
                f"{self._settings.bootstrap} has no topic "
                f"{self._settings.broker_topic(DEAD_LETTER_MARKS.name)}, where it is noted which "
                "letters were replayed; run `carpool topics create`"
            )
        # Those of our list: without a prefix, the topics of other prefixes are seen too.
        ours = (topic.name for topic in TOPICS if topic.name.endswith(DEAD_LETTER_SUFFIX))
        return tuple(sorted(name for name in ours if name in names))

    def marks(self) -> Marks:
        """Returns the latest mark of each letter; marks that cannot be read are skipped."""
        marks: Marks = {}
        for message in self._read(DEAD_LETTER_MARKS.name):
            try:
                mark = decode(DeadLetterMark, message.value, message.headers)
            except RecordError:
                continue
            place = (mark.letter.topic, mark.letter.partition, mark.letter.offset)
            if place not in marks or marks[place].marked_us <= mark.marked_us:
                marks[place] = mark
        return marks

    def letters(self, topic: str, marks: Marks) -> Iterator[DeadLetter]:
        """Yields every letter of a topic, those of each partition in order."""
        for message in self._read(topic):
            at = message.source
            yield read_letter(message, marks.get((at.topic, at.partition, at.offset)))

    def letter(self, place: Place) -> DeadLetter:
        """Returns one letter. Raises `ConfigError` when there is none at that place."""
        topic, partition, offset = place
        at = TopicPartition(topic, partition)
        with self._reader() as reader:
            message = None
            if at in reader.partitions(topic):
                with suppress(SilentBrokersError):  # some brokers, beyond the end
                    message = reader.read_one(at, offset, timeout_s=ONE_RECORD_S)
        if message is None:
            raise ConfigError(
                f"there is no letter at {topic}/{partition}/{offset}; `carpool dlq list --letters` "
                "shows places"
            )
        return read_letter(message, self.marks().get(place))

    def selected(self, selection: Selection, marks: Marks) -> Iterator[DeadLetter]:
        """Yields the selected letters, topic by topic."""
        for topic in self.topics():
            if selection.takes_topic(topic):
                yield from filter(selection.takes, self.letters(topic, marks))

    def mark(
        self,
        letters: Iterable[DeadLetter],
        action: Action,
        producer: TransactionalProducerClient,
        *,
        deadline_ms: int | None = None,
    ) -> Sent:
        """Replays or drops letters, each together with its mark.

        `producer` was started before the marks were read, so no other process replays the same
        letters. Raises `RetryableError` when the brokers do not accept a batch: earlier batches are
        done, and the same call continues.
        """
        marked = cut = 0
        for batch in _batches(letters):
            whole = [letter for letter in batch if letter.is_whole or action == "dropped"]
            cut += len(batch) - len(whole)
            outputs = [self._mark(letter, action) for letter in whole]
            if action == "replayed":
                outputs += [replay_output(letter, deadline_ms=deadline_ms) for letter in whole]
            _commit(producer, outputs)
            marked += len(whole)
        return Sent(marked=marked, cut=cut)

    def _mark(self, letter: DeadLetter, action: Action) -> Output:
        now_us = self._clock.now_us()
        mark = DeadLetterMark(letter=letter.place, action=action, marked_us=now_us)
        place = letter.place.place
        value, headers = encode(
            mark, event_id=f"{place}/{action}/{now_us}", source="carpool/dlq", time_us=now_us
        )
        return Output(
            topic=DEAD_LETTER_MARKS.name, key=place.encode(), value=value, headers=headers
        )


def _batches(letters: Iterable[DeadLetter]) -> Iterator[list[DeadLetter]]:
    batch: list[DeadLetter] = []
    size_bytes = 0
    for letter in letters:
        batch.append(letter)
        size_bytes += len(letter.value)
        if len(batch) >= BATCH_LETTERS_MAX or size_bytes >= BATCH_BYTES_MAX:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def _commit(producer: TransactionalProducerClient, outputs: list[Output]) -> None:
    """Writes all of these or none. Raises `RetryableError` after a few tries."""
    for left in range(TRIES - 1, -1, -1):
        try:
            _insist(producer.begin)
            for output in outputs:
                producer.produce(output)
            _insist(producer.commit)
            return
        except AbortedError as error:
            _insist(producer.abort)
            if not left:
                raise RetryableError(
                    f"the brokers did not accept it, {TRIES} times: {error}"
                ) from error


def _insist(call: Callable[[], None]) -> None:
    for left in range(TRIES - 1, -1, -1):
        try:
            call()
            return
        except RetryableError:
            if not left:
                raise

"""The log of a table: one reader follows it, another looks up offsets and records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from carpool.clock import Clock
from carpool.errors import RetryableError
from carpool.kafka.records import Message, TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from schemas.topics import Topic

FOLLOWER = {
    # After truncation or deletion everything that is left must be read.
    "auto.offset.reset": "earliest",
    # A fetch that finds less waits for as long as it may: fewer requests, later rows.
    "fetch.min.bytes": 64 * 1024,
}
LOOK_UP = {
    # The end must not depend on open transactions; a fetched record was read as committed before.
    "isolation.level": "read_uncommitted",
    # Brokers return a whole record batch, however large, if it is the first of the response.
    "fetch.message.max.bytes": 16 * 1024,
    "queued.min.messages": 1,
}


class TopicLog:
    """The partitions of one topic, as `TopicTable` reads them; tests have one in memory.

    All calls come from one thread, may block for a request's time-out, and may raise
    `RetryableError`, after which the same call may be made again.
    """

    def __init__(
        self, settings: KafkaSettings, clock: Clock, topic: Topic, *, is_urgent: bool = True
    ) -> None:
        """Connects in `open`.

        `is_urgent`: brokers send a record at once, in more and smaller responses.
        """
        self._follower_config = FOLLOWER | ({"fetch.min.bytes": 1} if is_urgent else {})
        self.topic = topic.name
        self._settings = settings
        self._clock = clock
        self._timeout_s = settings.request_timeout_ms / 1_000
        self._next: dict[int, int] = {}
        self._trouble: str | None = None

    @cached_property
    def _follower(self) -> TopicReader:
        return self._reader(self._follower_config)

    @cached_property
    def _look_up(self) -> TopicReader:
        return self._reader(LOOK_UP)

    def _reader(self, config: Mapping[str, object]) -> TopicReader:
        return TopicReader(self._settings, self._clock, name=self.topic, config=config)

    def open(self) -> None:
        """Connects. Raises `ConfigError` when the topic is missing."""
        self._look_up.partitions(self.topic)

    def first_since(self, partition: int, since_ms: int) -> int:
        """Returns the offset that the broker has for `since_ms`."""
        return self._look_up.first_since(TopicPartition(self.topic, partition), since_ms)

    def begin(self, partition: int, offset: int) -> None:
        """Adds the partition to those of the follower."""
        self._follower.add({TopicPartition(self.topic, partition): offset})
        self._next[partition] = offset

    def forget(self, partition: int) -> None:
        """Takes the partition from the follower, with what was fetched ahead."""
        self._follower.remove([TopicPartition(self.topic, partition)])
        del self._next[partition]

    def end(self, partition: int) -> int:
        """Returns the offset after the last record, committed or not."""
        return self._look_up.bounds(TopicPartition(self.topic, partition))[1]

    def poll(self, timeout_s: float, records_max: int) -> Sequence[Message]:
        """Returns a batch. An error of librdkafka is raised by the next call.

        A record that cannot be unpacked counts as one that was never written.
        """
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            topic = self._settings.broker_topic(self.topic)
            raise RetryableError(f"{topic} cannot be read: {trouble}")
        batch = self._follower.poll(records_max, timeout_s)
        for message in batch.messages:
            self._next[message.source.partition] = message.source.offset + 1
        for at, offset in (batch.passed_over | batch.ends).items():
            if at.partition in self._next:
                self._next[at.partition] = max(self._next[at.partition], offset)
        if batch.errors:
            self._trouble = batch.errors[-1].str()
        return batch.messages

    def position(self, partition: int) -> int:
        """Returns the offset after the last record, or of the end where that was reached."""
        return self._next[partition]

    def fetch(self, partition: int, offset: int) -> Message | None:
        """Returns the record at `offset`, in one or two requests; None: it was deleted."""
        at = TopicPartition(self.topic, partition)
        return self._look_up.read_one(at, offset, timeout_s=self._timeout_s)

    def close(self) -> None:
        """Disconnects."""
        for name in ("_follower", "_look_up"):
            if name in vars(self):
                vars(self).pop(name).close()

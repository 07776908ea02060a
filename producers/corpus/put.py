"""Sends the changes of a put, and follows what the indexer makes of them."""

from __future__ import annotations

import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import TypeVar

from carpool.clock import Clock
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader, is_final, read_topic
from producers.corpus.files import FoundDocument
from producers.corpus.log import READER, indexed, read_known, topic_id
from producers.corpus.plan import DocumentChange, PutPlan
from producers.errors import PublishError
from producers.match_answers import Place
from producers.publish_queries import Publisher
from producers.settings import ClientSettings
from schemas.document import DocumentVectors
from schemas.topics import DOCUMENTS, VECTORS

T = TypeVar("T")

AHEAD_MAX = 1_000
"""Passages that a put keeps ahead of the indexer, so that another one behind it waits seconds."""
STEP_S = 0.05
SILENT_S = 30.0
TAIL = {"auto.offset.reset": "earliest", "fetch.wait.max.ms": 50}


class _Stopped(Exception):
    """The put was stopped."""


class CorpusPut:
    """One put of documents. For one thread, but `stop`.

    `counts`: of documents, by how they end. `ahead`: those that the brokers have, and the indexer
    has not answered. `is_silent`: it has answered nothing for `SILENT_S`. `kept`: why nothing was
    deleted, where something may have been removed.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        client: ClientSettings,
        clock: Clock,
        refused: Callable[[DocumentChange], None],
        progress: Callable[[CorpusPut], None],
    ) -> None:
        """`refused` is called with each change that is refused, `progress` at each step."""
        self._kafka, self._client, self._clock = kafka, client, clock
        self._refused, self._progress = refused, progress
        self._acknowledged = queue.SimpleQueue[
            tuple[DocumentChange, Place | None, PublishError | None]
        ]()
        self._placed: dict[int, deque[tuple[int, DocumentChange]]] = {}  # by partition, by offset
        self._unplaced = 0  # documents that were sent, and that the brokers have not acknowledged
        self._passages = 0  # that were sent, and that the indexer has not answered
        self.counts = Counter[str]()
        self.is_stopped = self.is_silent = False
        self.kept = ""

    @property
    def ahead(self) -> int:
        return sum(map(len, self._placed.values()))

    def stop(self) -> None:
        """Ends the put after what was sent. For handlers of signals, too."""
        self.is_stopped = True

    def run(
        self, owner: str, found: Iterable[FoundDocument], *, deletes: bool, waits: bool
    ) -> None:
        """Sends what has changed until the brokers have it, and with `waits` the indexer, too.

        Blocks. Raises `ConfigError`, `RetryableError` and `PublishError`: what was sent before is
        in the log then, and the next put sends the rest.
        """
        with ExitStack() as stack:
            self._topic = topic_id(self._kafka)
            tail = TopicReader(self._kafka, self._clock, name=READER, config=TAIL)
            self._tail = stack.enter_context(tail)
            patience_s = self._kafka.request_timeout_ms / 1_000
            places = tail.partitions(VECTORS.name)
            tail.add({at: tail.bounds(at, patience_s=patience_s)[1] for at in places})
            self._publisher = Publisher(self._kafka, self._client)
            stack.callback(self._publisher.close, 0)
            with suppress(_Stopped):
                log = read_topic(self._kafka, self._clock, DOCUMENTS.name, name=READER)
                known = read_known(self._until_stopped(log), owner)
                plan = PutPlan(owner, known, self._clock.now_us)
                for change in plan.changes(self._until_stopped(found), deletes=deletes):
                    self._take(change)
                self.kept = plan.kept
                if waits:
                    self._wait(0)
            self._flush()

    def _until_stopped(self, each: Iterable[T]) -> Iterator[T]:
        """A put that is stopped must not go on as if this were the end: it would delete more."""
        for one in each:
            self._check()
            yield one

    def _check(self) -> None:
        self._progress(self)
        if self.is_stopped:
            raise _Stopped

    def _take(self, change: DocumentChange) -> None:
        if change.record is None:
            self._end(change)
            return
        if self._passages + change.passages > AHEAD_MAX:
            self._wait(max(0, AHEAD_MAX - max(change.passages, AHEAD_MAX // 2)))
        self._passages += change.passages
        self._send(change)

    def _send(self, change: DocumentChange) -> None:
        assert change.record is not None, "only what is not refused is sent"
        self._unplaced += 1
        self._publisher.send(
            change.record, lambda *result: self._acknowledged.put((change, *result))
        )

    def _end(self, change: DocumentChange) -> None:
        self.counts[change.end] += 1
        if change.end == "refused":
            self._refused(change)

    def _flush(self) -> None:
        """Waits until the brokers have what was sent. Raises `PublishError`."""
        while self._unplaced:
            self._publisher.flush(STEP_S)  # its last callback may still run
            while not self._acknowledged.empty():
                change, place, failure = self._acknowledged.get()
                self._unplaced -= 1
                if failure is not None:
                    raise failure
                if place is None:
                    self._send(change)  # nobody says where it is: a repeat changes nothing
                    continue
                self._placed.setdefault(place[0], deque()).append((place[1], change))
                self._end(change)
            self._progress(self)

    def _wait(self, passages_max: int) -> None:
        """Waits until the indexer has answered all but so many passages. Raises `RetryableError`.

        All that was sent has a place then, before an answer to it is read.
        """
        self._flush()
        heard_s = time.monotonic()
        while self._passages > passages_max:
            self._check()
            batch = self._tail.poll(500, STEP_S)
            for error in filter(is_final, batch.errors):
                raise self._tail.unreadable(TopicPartition(VECTORS.name, 0), error)
            for message in batch.messages:
                if (made := indexed(message, self._topic)) is not None:
                    heard_s = time.monotonic()
                    self._answered(message.source.partition, made)
            self.is_silent = time.monotonic() - heard_s > SILENT_S

    def _answered(self, partition: int, made: DocumentVectors) -> None:
        """The indexer has answered a document, and so those before it."""
        placed = self._placed.get(partition)
        while placed and placed[0][0] <= made.offset:
            offset, change = placed.popleft()
            self._passages -= change.passages
            if offset == made.offset and made.refused is not None:
                why = f"the indexer refuses it: {made.refused}"
                self._end(change._replace(end="refused", why=why))

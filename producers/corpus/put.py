"""Sends the changes of a put, and follows what the indexer makes of them."""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import TypeVar

from carpool.clock import Clock
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader, is_final, read_topic
from producers.corpus.files import FoundDocument
from producers.corpus.log import READER, indexed_head, read_known, topic_id
from producers.corpus.plan import AheadOfIndexer, DocumentChange, PutPlan
from producers.errors import PublishError
from producers.match_answers import Place
from producers.publish_queries import Publisher
from producers.settings import ClientSettings
from schemas.topics import DOCUMENTS, VECTORS

T = TypeVar("T")

STEP_S = 0.05
SILENT_S = 30.0
TAIL = {"auto.offset.reset": "earliest", "fetch.wait.max.ms": 50}


class _Stopped(Exception):
    """The put was stopped."""


class CorpusPut:
    """One put of documents. For one thread, but `stop`.

    `counts`: of documents, by how they end. `is_silent`: no indexer has answered for `SILENT_S`.
    `kept`: why nothing was deleted, where something may have been removed.
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
        self._results = queue.SimpleQueue[
            tuple[DocumentChange, Place | None, PublishError | None]
        ]()
        self._unplaced = 0
        self._heard_s = time.monotonic()
        self.counts = Counter[str]()
        self.ahead = AheadOfIndexer()
        self.is_stopped = self.is_silent = False
        self.kept = ""

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
            self._tail = stack.enter_context(closing(tail))
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
                while waits and self.ahead.documents:
                    self._check()
                    self._step(STEP_S)
            while self._unplaced:
                self._step(STEP_S)

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
        while not self.ahead.has_room(change):
            self._check()
            self._step(STEP_S)
        self.ahead.sent(change)
        self._send(change)
        self._step(0)

    def _send(self, change: DocumentChange) -> None:
        assert change.record is not None, "only what is not refused is sent"
        self._unplaced += 1
        self._publisher.send(change.record, lambda *result: self._results.put((change, *result)))

    def _end(self, change: DocumentChange) -> None:
        self.counts[change.end] += 1
        if change.end == "refused":
            self._refused(change)

    def _step(self, wait_s: float) -> None:
        """Takes in what the indexer and the brokers say. Raises `RetryableError`."""
        refused, now_s = [], time.monotonic()
        batch = self._tail.poll(500, wait_s)
        for error in filter(is_final, batch.errors):
            raise self._tail.unreadable(TopicPartition(VECTORS.name, 0), error)
        for message in batch.messages:
            if (head := indexed_head(message, self._topic)) is not None:
                self._heard_s = now_s
                refused += self.ahead.indexed(message.source.partition, head.offset, head.refused)
        while not self._results.empty():
            change, place, failure = self._results.get()
            self._unplaced -= 1
            if failure is not None:
                raise failure
            if place is None:
                self._send(change)  # the brokers do not say where it is: a repeat changes nothing
                continue
            self._end(change)
            refused += self.ahead.placed(change, place)
        for change in refused:
            self._end(change)
        if not self.ahead.waits:
            self._heard_s = now_s
        self.is_silent = now_s - self._heard_s > SILENT_S

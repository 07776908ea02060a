"""The indexer with its real loop on the broker in memory; a test steps it, and may kill it."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from carpool.embedding.hashing import HashingEmbedder
from carpool.embedding.loader import CachedEmbedder
from carpool.errors import RetryableError
from carpool.kafka.partitioner import partition_of
from carpool.kafka.records import Message, TopicPartition
from carpool.loop.delivery.delivery import LoopParts
from carpool.loop.loop import Loop
from carpool.telemetry.metrics import Metrics
from indexer.corpus_logs import CorpusLogs
from indexer.documents import IndexRules
from indexer.intake import ReadDocument, document_intake
from indexer.service import IndexerStage, Model
from indexer.vector_records import VectorRecords
from schemas.codec import decode
from schemas.document import DocumentVectors
from schemas.record import Source
from schemas.topics import DOCUMENTS, DOCUMENTS_DEAD, VECTORS
from tests.clocks import HandClock
from tests.loop.support import SteppedAtLeastOnce, SteppedExactlyOnce
from tests.memory_broker import (
    MemoryBroker,
    MemoryConsumer,
    MemoryProducer,
    MemoryTransactionalProducer,
)
from tests.waiting import wait_until

DIMENSION = 16
MODEL = HashingEmbedder(DIMENSION)
RULES = IndexRules(
    fingerprint=MODEL.fingerprint, dimension=DIMENSION, chars_max=100, passage_bytes_max=1_000
)
GROUP = "carpool-indexer"
TOPIC_ID = "documents-1"


class MemoryLogs(CorpusLogs):
    """Looks into the logs of a broker in memory. `is_down`: no broker answers."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.partitions = broker.partitions[DOCUMENTS.name]
        self.looks = Counter[str]()
        self.is_down = False
        self.begins: dict[int, int] = {}
        self.id = TOPIC_ID
        self.nulls_ms = 60_000

    def topic_id(self) -> str:
        self._look("id")
        return self.id

    def has_more(self, source: Source) -> bool:
        self._look("more")
        at = TopicPartition(source.topic, source.partition)
        return self.broker.logs[at].next_committed(source.offset + 1) is not None

    def last_vectors(self, partition: int) -> Message | None:
        self._look("last")
        return next(reversed(self._records(VECTORS.name, partition)), None)

    def first_document(self, partition: int) -> int:
        return self.begins.get(partition, 0)

    def records(self, topic: str, partition: int) -> Iterator[Message]:
        self._look(topic)
        return iter(self._records(topic, partition))

    def _records(self, topic: str, partition: int) -> list[Message]:
        found = self.broker.records(topic)
        return [each for each in found if each.source.partition == partition]

    def _look(self, name: str) -> None:
        self.looks[name] += 1
        if self.is_down:
            raise RetryableError("no broker answers")


class HookedEmbedder(HashingEmbedder):
    """The hashing embedder; a test sees each pass before it, and may raise."""

    def __init__(self) -> None:
        super().__init__(DIMENSION)
        self.passes: list[list[str]] = []
        self.hook: Callable[[Sequence[str]], object] = lambda _: None

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.passes.append(list(texts))
        self.hook(texts)
        return super().encode(texts)


class Corpus:
    """Topics of documents and vectors, and one life of an indexer after the other."""

    def __init__(self, *, is_exact: bool = True, partitions: int = 2) -> None:
        # To print the traceback of a failure on purpose takes longer than its test.
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        self.is_exact = is_exact
        self.clock = HandClock(step_us=1)
        topics = (DOCUMENTS.name, VECTORS.name, DOCUMENTS_DEAD.name)
        self.broker = MemoryBroker(self.clock, dict.fromkeys(topics, partitions))
        self.logs = MemoryLogs(self.broker)
        self.embedder = HookedEmbedder()
        self.metrics = Metrics()
        self.lives = 0
        self.start()

    def start(self) -> None:
        """Begins a life."""
        self.lives += 1
        self.metrics = Metrics()
        records = VectorRecords(self.logs, self.clock)
        self.stage = IndexerStage(
            open_model=lambda: Model(CachedEmbedder(self.embedder), RULES),
            records=records,
            metrics=self.metrics,
            clock=self.clock,
        )
        own = {"own_instance_id": "one"} if self.is_exact else {}
        self.consumer = MemoryConsumer(self.broker, GROUP, **own)
        self.loop = Loop[ReadDocument](
            name="indexer",
            group=GROUP,
            intake=document_intake(records, lambda: self.logs.partitions),
            stage=self.stage,
            consumer=self.consumer,
            make_delivery=self._delivery,
            clock=self.clock,
            metrics=self.metrics,
        )
        self.loop.start()
        wait_until(lambda: not self.stage.not_ready(), self.stage.not_ready)

    def _delivery(self, parts: LoopParts) -> SteppedExactlyOnce | SteppedAtLeastOnce:
        if not self.is_exact:
            return SteppedAtLeastOnce(
                parts,
                make_producer=lambda: MemoryProducer(self.broker),
                make_hint_producer=lambda: MemoryProducer(self.broker),
                commit_interval_ms=0,
            )
        return SteppedExactlyOnce(
            parts,
            producer=MemoryTransactionalProducer(self.broker, f"{GROUP}-one"),
            make_hint_producer=lambda: MemoryProducer(self.broker),
            instance_id="one",
            commit_interval_ms=0,
        )

    def kill(self) -> None:
        """Ends a life as `kill -9`, and begins the next one."""
        self.consumer.crash()
        self.stage.close()
        self.start()

    def close(self) -> None:
        self.stage.check_integrity()
        self.loop.close()

    def step(self, pause_us: int = 0) -> None:
        """One round of the loop and of its delivery."""
        self.loop.step()
        for _ in range(2):
            self.loop.delivery.step(0)
        self.loop.in_flight.check_integrity()
        assert self.loop.failure is None, self.loop.failure
        self.clock.sleep(pause_us)

    def until(self, holds: Callable[[], bool], pause_us: int = 1_000) -> None:
        """Steps until a condition holds."""

        def stepped() -> bool:
            self.step(pause_us)
            return holds()

        wait_until(stepped, lambda: (self.all_vectors(), self.stage.not_ready()))

    def settle(self) -> None:
        """Steps until every document has ended."""
        ends = {
            at: log.last_stable()
            for at, log in self.broker.logs.items()
            if at.topic == DOCUMENTS.name
        }

        def is_done() -> bool:
            found = self.broker.committed(GROUP)
            return all(
                (found[at].offset or 0) >= end if at in found else not end
                for at, end in ends.items()
            )

        self.until(is_done)

    def put(
        self, key: str | bytes, value: Any, *, partition: int | None = None, age_min: float = 0
    ) -> int:
        """Appends a document: a text, fields, bytes, or None; returns its offset."""
        key = key.encode() if isinstance(key, str) else key
        body = json.dumps(value).encode() if isinstance(value, Mapping) else value
        body = body.encode() if isinstance(body, str) else body
        place = partition_of(key, self.logs.partitions) if partition is None else partition
        now_us, age_us = self.clock.time_us, int(age_min * 60_000_000)
        self.clock.time_us -= age_us
        try:
            return self.broker.append(DOCUMENTS.name, body, key=key, partition=place)
        finally:
            self.clock.time_us = now_us

    def compact(self, *offsets: int, partition: int = 0) -> None:
        """Removes documents, as a compaction does."""
        entries = self.broker.logs[TopicPartition(DOCUMENTS.name, partition)]._entries
        for offset in offsets:
            entries[offset] = replace(entries[offset], is_marker=True)

    def vectors(self, partition: int = 0) -> list[tuple[bytes | None, DocumentVectors]]:
        """The records of a partition of vectors, by key."""
        return [
            (each.key, decode(DocumentVectors, each.value, each.headers))
            for each in self.broker.records(VECTORS.name)
            if each.source.partition == partition
        ]

    def all_vectors(self) -> list[tuple[bytes | None, DocumentVectors]]:
        return [each for number in range(self.logs.partitions) for each in self.vectors(number)]

    def letters(self) -> list[Message]:
        return self.broker.records(DOCUMENTS_DEAD.name)


def key_in(partition: int, name: str = "doc", partitions: int = 2) -> str:
    """A key that belongs in a partition."""
    numbers = (f"{name}-{number}" for number in range(1_000))
    return next(key for key in numbers if partition_of(key.encode(), partitions) == partition)


def rows_of(found: DocumentVectors) -> NDArray[np.float32]:
    """The vectors of a record: (n, dim) float32."""
    rows = np.frombuffer(found.vectors, dtype="<f2").reshape(len(found.passages), -1)
    return rows.astype(np.float32)


def given(text: str, vector: Sequence[float] | NDArray[Any], **fields: Any) -> dict[str, Any]:
    """A passage with its vector, as applications publish it."""
    content = np.asarray(vector, dtype="<f4").tobytes()
    made = {"text": text, "vector": content, "embedding_model": MODEL.fingerprint} | fields
    return dict(json.loads(msgspec.json.encode(made)))


class Gate:
    """Holds a pass of the embedder until a test opens it."""

    def __init__(self, corpus: Corpus, only: str = "") -> None:
        self.only = only
        self.is_held, self.opened = threading.Event(), threading.Event()
        corpus.embedder.hook = self

    def __call__(self, texts: Sequence[str]) -> None:
        if any(self.only in text for text in texts):
            self.is_held.set()
            self.opened.wait()

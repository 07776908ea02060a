"""The indexer as a stage: documents come in, and leave with vectors, those of a partition in order.

One thread opens the embedding model, and then works: it checks and cuts what waits, and embeds a
few texts at a time (`indexer.plan.next_pass`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import structlog
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from carpool.clock import Clock
from carpool.embedding.loader import CachedEmbedder
from carpool.errors import CarpoolError
from carpool.kafka.records import TopicPartition
from carpool.loop.ends import one_by_one
from carpool.loop.refusal import Refusal
from carpool.loop.stage import Credit, Done, Sink, Stage, Unit
from carpool.telemetry.metrics import Metrics
from carpool.worker import Worker
from indexer.documents import IndexedDocument, IndexRules
from indexer.intake import ReadDocument
from indexer.plan.next_pass import WaitingDocuments
from indexer.saver import BaseSaver
from indexer.vector_records import VectorRecords
from schemas.document import DocumentVectors
from schemas.errors import RecordError
from schemas.topics import DOCUMENTS

log = structlog.get_logger()
T = TypeVar("T")

TEXTS_MAX = 32
"""Texts that are embedded together: half a second. 64 take 4 % less time, and documents wait twice
as long behind a large one.
"""
DOCUMENTS_MAX = 1_000
INTAKE_BYTES_MAX = 32 * 1024 * 1024
"""Documents in the indexer at once, and their bytes."""
FIRST = TopicPartition(DOCUMENTS.name, 0)
"""Who has this partition saves bases."""
DELETED = DocumentVectors(offset=0, deleted=True)


class _ClosingError(CarpoolError):
    """The stage ends: the thread does no more."""


class Model(NamedTuple):
    """What the indexer works with, once it is open."""

    embedder: CachedEmbedder
    rules: IndexRules


@dataclass(slots=True, eq=False)
class _Work:
    """A document in hand. `document`: what is indexed of it; None until then, and of a delete."""

    unit: Unit[ReadDocument]
    document: IndexedDocument | None = None

    @property
    def texts_left(self) -> int:
        return 0 if self.document is None else self.document.texts_left


class IndexerStage(Stage[ReadDocument]):
    """Credit bounds the documents in it, and is zero until the model is open."""

    def __init__(
        self,
        *,
        open_model: Callable[[], Model],
        records: VectorRecords,
        metrics: Metrics,
        clock: Clock,
        saver: BaseSaver | None = None,
    ) -> None:
        """`open_model` is called on the thread. It may block and raise `CarpoolError`. `saver`
        works while this member has the first partition; None: nobody saves bases.
        """
        self._open_model = open_model
        self._records = records
        self._saver = saver
        self._metrics = metrics.indexer
        self._refusal = Refusal(clock)
        self._out: Sink  # from `start` on
        self._worker = Worker[Model]("the embedding model is being loaded")
        self._closing = threading.Event()
        self._wake = threading.Condition()
        # The lock of the condition guards all attributes below.
        self._works: dict[int, _Work] = {}  # by unit
        self._waiting = WaitingDocuments(TEXTS_MAX)
        self._size_bytes = 0

    def start(self, sink: Sink) -> None:
        """Starts the thread."""
        self._out = sink
        self._worker.start(sink.fail, index=self._index)

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """See `Stage`."""
        self._records.assigned(partitions)
        if self._saver is not None and FIRST in partitions:
            self._saver.begin()

    def credit(self) -> Credit:
        """Returns how many more documents and bytes fit."""
        if self._worker.not_ready():
            return Credit(records=0, size_bytes=0)
        with self._wake:
            return Credit(
                records=max(0, DOCUMENTS_MAX - len(self._works)),
                size_bytes=max(0, INTAKE_BYTES_MAX - self._size_bytes),
            )

    def offer(self, unit: Unit[ReadDocument], now_us: int) -> None:
        """Adds a document at the end of the line of its partition."""
        self._records.took(unit)
        with self._wake:
            self._works[unit.id] = _Work(unit)
            self._size_bytes += unit.message.size_bytes
            self._waiting.add(unit.at, unit.id)
            self._wake.notify()

    def revoke(self, unit_ids: frozenset[int], partitions: frozenset[TopicPartition]) -> None:
        """Forgets these documents. The loop discards what the thread makes of them meanwhile."""
        if self._saver is not None and FIRST in partitions:
            self._saver.end()
        with self._wake:
            self._waiting.forget(unit_ids)
            for unit_id in unit_ids:
                if (work := self._works.pop(unit_id, None)) is not None:
                    self._size_bytes -= work.unit.message.size_bytes

    def not_ready(self) -> Sequence[str]:
        """Returns what is missing: the model while it loads, the brokers, or what has failed."""
        refused = self._refusal.reason
        return (*self._worker.not_ready(), *((refused,) if refused else ()))

    def close(self) -> None:
        """Stops the thread. Blocks for up to a second: a pass of the model is not interrupted."""
        self._worker.close(self._stop)

    def check_integrity(self) -> None:
        """Asserts that the sum of bytes is right."""
        with self._wake:
            sizes = [work.unit.message.size_bytes for work in self._works.values()]
            assert sum(sizes) == self._size_bytes

    def _stop(self) -> None:
        self._closing.set()
        if self._saver is not None:
            self._saver.end()
        with self._wake:
            self._wake.notify_all()

    # On the thread.

    @threadpool_limits.wrap(limits=1, user_api="blas")  # type: ignore[untyped-decorator]
    def _index(self) -> None:
        with suppress(_ClosingError):
            model = self._worker.open(self._opened)
            while model is not None and not self._closing.is_set():
                self._step(model)

    def _step(self, model: Model) -> None:
        """Waits for documents, prepares some, and embeds the texts of a pass."""
        for work in self._to_prepare():
            one_by_one((work,), lambda each: self._prepare(each[0], model.rules), self._charge)
        works = self._next_pass()
        one_by_one(works, partial(self._embed, model.embedder), self._charge)
        for work in works:
            if self._has(work) and not work.texts_left:
                one_by_one((work,), lambda each: self._end(each[0]), self._charge)

    def _opened(self) -> Model:
        model = self._insist(self._open_model)
        log.info("ready", embedding_model=model.rules.fingerprint, dimension=model.rules.dimension)
        return model

    def _to_prepare(self) -> list[_Work]:
        """Waits for a document. Returns those that are prepared before the next pass."""
        with self._wake:
            self._wake.wait_for(lambda: self._closing.is_set() or self._waiting)
            return [self._works[unit_id] for unit_id in self._waiting.to_prepare()]

    def _next_pass(self) -> list[_Work]:
        with self._wake:
            works = [
                (self._works[unit_id], count)
                for unit_id, count in self._waiting.next_pass().items()
            ]
        for work, count in works:
            assert work.document is not None, "it is prepared"
            work.document.begin(count)
        return [work for work, _ in works]

    def _prepare(self, work: _Work, rules: IndexRules) -> None:
        """Cuts and checks a document. Ends it where nothing has to be embedded."""
        unit, document = work.unit, work.unit.record.document
        try:
            is_new = self._insist(partial(self._records.is_new, unit))
            if is_new and unit.record.error is not None:
                raise unit.record.error
            if is_new and document is not None:
                work.document = IndexedDocument(document, rules)
        except RecordError as error:
            self._refuse(work, error)
            return
        if work.document is not None:
            self._metrics.passages.labels(vectors="given").inc(work.document.given)
        if not work.texts_left:
            self._end(work)
            return
        with self._wake:
            if unit.id in self._works:
                self._waiting.prepared(unit.at, unit.id, work.texts_left)

    def _embed(self, embedder: CachedEmbedder, works: Sequence[_Work]) -> None:
        documents = [work.document for work in works if work.document is not None]
        texts = [document.texts() for document in documents]
        before = embedder.computed
        vectors = embedder.encode([text for some in texts for text in some])
        embedded, first = embedder.computed - before, 0
        for document, some in zip(documents, texts, strict=True):
            document.take(vectors[first : first + len(some)])
            first += len(some)
        self._metrics.passages.labels(vectors="embedded").inc(embedded)
        self._metrics.passages.labels(vectors="known").inc(len(vectors) - embedded)

    def _end(self, work: _Work) -> None:
        """Hands the record of a document over, or refuses it."""
        record = DELETED if work.document is None else work.document.record()
        try:
            outputs = self._insist(partial(self._records.outputs, work.unit, record))
        except RecordError as error:
            self._refuse(work, error)
            return
        outcome = "deleted" if record.deleted else "indexed"
        self._metrics.documents.labels(outcome=outcome if outputs else "repeated").inc()
        self._forget(work)
        self._out.done(Done(parts=work.unit.owed, outputs=outputs))

    def _refuse(self, work: _Work, error: RecordError) -> None:
        source = work.unit.source
        log.info("document refused", error=str(error), record=source.place)
        self._metrics.documents.labels(outcome="refused").inc()
        self._forget(work)
        self._insist(partial(self._out.refuse, work.unit, error))

    def _charge(self, work: _Work, error: Exception) -> None:
        self._forget(work)
        self._insist(partial(self._out.charge, work.unit.owed, error))

    def _has(self, work: _Work) -> bool:
        with self._wake:
            return self._works.get(work.unit.id) is work

    def _forget(self, work: _Work) -> None:
        if self._has(work):
            self.revoke(frozenset({work.unit.id}), frozenset())

    def _insist(self, call: Callable[[], T]) -> T:
        """Returns the result of `call`, made again until the brokers answer, or the stage ends."""
        found = self._refusal.insist(lambda: (call(),), self._closing.wait)
        if found is None:
            raise _ClosingError
        return found[0]

"""The corpus of a searcher: it folds documents over a base, and says what searches see (ADR 0031).

One thread folds and publishes. Any thread takes the snapshot that was published last.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from carpool.arrays import Int64
from carpool.codes.row_mask import RowMask, are_visible, new_mask, set_visible
from carpool.corpus.fold import BaseDocuments, Fold, Step
from carpool.corpus.follower import Received
from carpool.corpus.passages import passages_of
from carpool.disk.documents import Passage
from carpool.errors import ConfigError
from carpool.telemetry.metrics import Metrics
from schemas.document import Corpus
from searcher.fresh.rows import FreshRows, FreshView
from searcher.snapshot import Snapshot

HIDDEN_SHARE = 0.5
"""Fresh rows are rewritten without the hidden ones when these are so much of them."""
HIDDEN_SHARE_MIN = 0.1
"""The same where there is no room; with less, what is freed is not worth the time."""
_encoder = msgspec.msgpack.Encoder()


class BaseRows(BaseDocuments, Protocol):
    """The documents of a base, and the rows of their passages."""

    def rows_of(self, passages: range) -> Int64:
        """Returns the row of each passage, by its number: (n,) int64."""
        ...


class LiveCorpus:
    """See the module. `snapshot`: what searches that begin now see."""

    def __init__(
        self,
        fold: Fold,
        base: BaseRows,
        fresh: FreshRows,
        *,
        name: str,
        embedding_model: str,
        metrics: Metrics,
    ) -> None:
        """`name`: of the base; `embedding_model`: its fingerprint, which fresh vectors must have.

        Rows of the base are numbered below `fresh.first_row`.
        """
        self._fold = fold
        self._base = base
        self._name = name
        self._metrics = metrics.corpus
        self._embedding_model = embedding_model
        self.fresh = fresh
        self._buffer = bytearray()
        self._lock = threading.Lock()  # one thread changes what it guards
        self._mask: RowMask | None = None  # of the base; None: nothing is hidden
        self._mask_seen: RowMask | None = None  # a copy, as it was published
        self.snapshot = Snapshot(Corpus(base=name, position=fold.position))

    def add(self, records: Sequence[Received]) -> bool:
        """See `Folded`."""
        known, position = list[Received](), self._fold.position
        for each in records:  # not those that repeat an older one
            partition, offset = each.source.partition, each.record.offset
            if offset >= position.get(partition, -1):
                position[partition] = offset
                known.append(each)
        passages = [passage for each in known for passage in self._passages_of(each)]
        vectors = b"".join(each.record.vectors for each in known)
        with self._lock:
            if not self._has_added(vectors, passages):
                return False
            self._hide([self._fold.step(each.revision) for each in known])
        for kind, count in Counter(map(_kind, known)).items():
            self._metrics.folded.labels(kind=kind).inc(count)
        return True

    def publish(self) -> bool:
        """Lets searches that begin now see what was folded; see `Folded`."""
        if self._fold.is_behind:
            return False
        with self._lock:
            if self._mask is not None and self._mask_seen is None:
                self._mask_seen = self._mask.copy()
            has_fresh = self._fold.documents > 0
            self.snapshot = Snapshot(
                Corpus(base=self._name, position=self._fold.position),
                self._mask_seen,
                self.fresh.view() if has_fresh else None,
            )
        self._metrics.fresh_bytes.set(self.fresh.size_bytes)
        self._metrics.fresh_rows.set(len(self.fresh.passages))
        return True

    def rows_of(self, key: bytes) -> tuple[Int64, FreshView | None]:
        """Returns the rows of the passages of a document, a digest, and how to read fresh ones.

        None where it is not there. It is what was folded last, perhaps not published yet.
        """
        with self._lock:
            if slots := self._fold.fresh_passages_of(key):
                return self.fresh.rows_of(slots), self.fresh.view()
            rows = self._base.rows_of(self._base.passages_of(key))
            is_shown = self._mask is None or bool(are_visible(self._mask, rows).all())
        return rows if is_shown else rows[:0], None

    def _passages_of(self, received: Received) -> list[bytes]:
        """Returns the passages of a record. Raises `ConfigError` if its vectors do not fit."""
        key, record, source, _ = received
        size_bytes = 2 * self.fresh.vectors.shape[1] * len(record.passages)
        if record.passages and record.embedding_model != self._embedding_model:
            raise ConfigError(
                f"{source.place}: its vectors are of the embedding model {record.embedding_model}, "
                f"and the base is of {self._embedding_model}: give indexer and index the same "
                "model, or build a new index"
            )
        if len(record.vectors) != size_bytes:
            raise ConfigError(
                f"{source.place}: {len(record.passages)} passages have {len(record.vectors)} bytes "
                f"of vectors, not {size_bytes}"
            )
        return [self._packed(passage) for passage in passages_of(key, record)]

    def _packed(self, passage: Passage) -> bytes:
        """Encodes into a buffer: bytes that the encoder makes leave half as much unused behind."""
        _encoder.encode_into(passage, self._buffer)
        return bytes(self._buffer)

    def _has_added(self, encoded: bytes, passages: list[bytes]) -> bool:
        """Adds rows. Where there is no room, or half of the rows are hidden, without these.

        `encoded`: their vectors, (n, dim) little-endian float16.
        """
        if not passages:
            return True
        vectors = np.frombuffer(encoded, "<f2").reshape(len(passages), -1)
        used_bytes, hidden_bytes = self._fold.used_bytes, self._fold.hidden_bytes
        is_half = hidden_bytes > max(HIDDEN_SHARE * used_bytes, self.fresh.limit_bytes / 8)
        if not is_half and self.fresh.add(vectors, passages):
            return True
        if hidden_bytes <= HIDDEN_SHARE_MIN * used_bytes:
            return False
        self.fresh = self.fresh.rewritten(self._fold.renumber())
        return self.fresh.add(vectors, passages)

    def _hide(self, steps: Sequence[Step]) -> None:
        self.fresh.hide([step.hides for step in steps if step.hides])
        of_base = [self._base.rows_of(step.hides_base) for step in steps if step.hides_base]
        if of_base:
            if self._mask is None:
                self._mask = new_mask(self.fresh.first_row, is_visible=True)
            set_visible(self._mask, np.concatenate(of_base), is_visible=False)
            self._mask_seen = None


def _kind(received: Received) -> str:
    record = received.record
    return "deleted" if record.deleted else "refused" if record.refused else "put"

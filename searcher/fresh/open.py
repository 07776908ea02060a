"""Opens the corpus of an index: what came after it is read from the log, and folded over it."""

from __future__ import annotations

from pathlib import Path

from carpool.arrays import Int64, UInt32
from carpool.clock import Clock
from carpool.corpus.base_folders import first_base
from carpool.corpus.fold import Fold
from carpool.corpus.follower import CorpusFollower
from carpool.disk.document_keys import DocumentKeys
from carpool.disk.document_rows import place_count, places_of_numbers
from carpool.disk.index import OpenIndex
from carpool.disk.manifest import Manifest
from carpool.disk.rotation import read_rotation
from carpool.kafka.settings import KafkaSettings
from carpool.telemetry.metrics import Metrics
from schemas.document import Base
from searcher.fresh.corpus import LiveCorpus
from searcher.fresh.rows import FreshRows
from searcher.settings import SearcherSettings

FULL = (
    "searcher.fresh_bytes is full: newer documents are not found until a base is saved (`carpool "
    "corpus save`); or set it higher"
)


class IndexRows:
    """Implements `BaseRows` for an index on disk. Opened at its first use: 4 bytes a passage."""

    def __init__(self, index_dir: Path, manifest: Manifest, of_places: UInt32) -> None:
        """`of_places`: as `carpool.disk.document_rows` reads it."""
        self._index_dir = index_dir
        self._manifest = manifest
        self._of_places = of_places
        self._keys: DocumentKeys | None = None
        self._rows: UInt32 | None = None

    def open(self) -> DocumentKeys:
        """Opens the table of documents. Blocks. Raises `ConfigError` where there is none."""
        if self._keys is None:
            self._keys = DocumentKeys.open(self._index_dir, self._manifest)
        return self._keys

    def passages_of(self, key: bytes) -> range:
        """See `BaseRows`."""
        return self.open().passages_of(key)

    def rows_of(self, passages: range) -> Int64:
        """See `BaseRows`."""
        if self._rows is None:
            self._rows = places_of_numbers(self._of_places, self._manifest.row_count)
        rows: Int64 = self._rows[passages.start : passages.stop].astype("i8")
        return rows


def open_corpus(
    index: OpenIndex,
    settings: SearcherSettings,
    kafka: KafkaSettings,
    metrics: Metrics,
    clock: Clock,
    base: Base | None,
    rows: IndexRows,
) -> tuple[CorpusFollower, LiveCorpus]:
    """Returns a corpus, and what follows it, not started. Blocks.

    `base`: what was announced of `index`; None: it is the first one. `rows`: its documents. Raises
    `ConfigError` where the index has no table of documents, `CorruptionError`.
    """
    manifest = index.manifest
    rows.open()
    fresh = FreshRows(
        index.centroids,
        read_rotation(index.dir, manifest),
        first_row=place_count(index.layout, index.extents),
        limit_bytes=settings.fresh_bytes,
        threads=settings.threads,
    )
    facts = first_base(manifest) if base is None else base
    fold = Fold(rows, facts.position)
    corpus = LiveCorpus(
        fold,
        rows,
        fresh,
        name=facts.name,
        embedding_model=manifest.embedding_model,
        metrics=metrics,
    )
    follower = CorpusFollower(corpus, fold, facts, kafka, clock)
    follower.full = FULL
    return follower, corpus

"""Builds the indexer: its intake, and its stage, which opens the model on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from carpool.clock import Clock, SystemClock
from carpool.embedding import EmbeddingSettings
from carpool.embedding.loader import CachedEmbedder, load_embedder
from carpool.kafka.settings import KafkaSettings
from carpool.loop.priority.intake_queues import Intake
from carpool.telemetry.metrics import Metrics
from indexer.corpus_logs import CorpusLogs
from indexer.documents import IndexRules
from indexer.intake import ReadDocument, document_intake
from indexer.saver import BaseSaver
from indexer.service import IndexerStage, Model
from indexer.settings import IndexerSettings
from indexer.vector_records import VectorRecords

KNOWN_BYTES = 64 * 1024 * 1024
"""Vectors of the last texts: a passage that did not change is not embedded again."""
KNOWN_EXTRA_BYTES = 300
"""What a vector takes in addition to its numbers."""

BuildStage = Callable[[Metrics, Clock], IndexerStage]


def build_service(
    kafka: KafkaSettings,
    embedding: EmbeddingSettings,
    settings: IndexerSettings,
    *,
    index_dir: Path,
    chars_max: int,
    fresh_bytes: int,
) -> tuple[Intake[ReadDocument], BuildStage]:
    """Returns the intake, and what makes the stage.

    `index_dir`: the index that bases are saved of. `chars_max`: a text is cut into passages of so
    many characters at most. `fresh_bytes`: what searchers have for documents that no base has.
    """
    clock = SystemClock()
    logs = CorpusLogs(kafka, clock)
    records = VectorRecords(logs, clock)

    def open_model() -> Model:
        logs.open()
        embedder = load_embedder(embedding, are_passages=True)
        row_bytes = 4 * embedder.dimension + KNOWN_EXTRA_BYTES
        return Model(
            embedder=CachedEmbedder(embedder, texts_max=KNOWN_BYTES // row_bytes),
            rules=IndexRules(
                fingerprint=embedder.fingerprint,
                dimension=embedder.dimension,
                chars_max=chars_max,
                passage_bytes_max=settings.passage_bytes_max,
            ),
        )

    def build_stage(metrics: Metrics, clock: Clock) -> IndexerStage:
        saver = BaseSaver(index_dir, fresh_bytes, settings, kafka, metrics, clock)
        return IndexerStage(
            open_model=open_model,
            records=records,
            metrics=metrics,
            clock=clock,
            saver=saver if fresh_bytes else None,
        )

    return document_intake(records, lambda: logs.partitions), build_stage

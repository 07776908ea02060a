"""Questions to tune an index with: vectors, texts, or those that were asked and Kafka still has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from carpool.arrays import Float32
from carpool.clock import Clock
from carpool.disk.manifest import Manifest
from carpool.embedding import EmbeddingSettings
from carpool.embedding.loader import load_question_embedder
from carpool.errors import ConfigError
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import read_topic
from indexer.progress import ProgressReport
from schemas.codec import decode_query
from schemas.errors import RecordError
from schemas.query import Query
from schemas.topics import QUERIES

_NORM_MIN = 1e-6


def questions_of_vectors(path: Path) -> Float32:
    """Returns the vectors of an .npy file: (n, dim) float32, normalised. Raises `ConfigError`."""
    try:
        return _normalised(np.load(path, allow_pickle=False).astype(np.float32))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} has no vectors of numbers: {error}") from error


def questions_of_texts(
    texts: Sequence[str], manifest: Manifest, embedding: EmbeddingSettings
) -> Float32:
    """Returns the vectors of texts: (n, dim) float32, normalised. Blocks to embed them."""
    return load_question_embedder(embedding, manifest).encode(texts)


def questions_of_log(
    kafka: KafkaSettings,
    manifest: Manifest,
    embedding: EmbeddingSettings,
    count_max: int,
    clock: Clock,
    progress: ProgressReport,
) -> Float32:
    """Returns the last questions that Kafka still has: (n, dim) float32, normalised. Blocks.

    Those with a vector of the index's model are taken as they are, the others embedded. Raises
    `ConfigError` where there is no such topic, `RetryableError` where it cannot be read.
    """
    progress.note(f"reading {QUERIES.name}")
    asked = list[Query]()
    for message in read_topic(kafka, clock, QUERIES.name, name="tune"):
        with suppress(RecordError):  # the grouper refused it, too
            asked.append(decode_query(message.value, message.headers, message.source))
    queries = asked[-count_max:]
    vectors = [
        np.frombuffer(query.vector, "<f4")
        for query in queries
        if query.vector is not None
        and query.embedding_model == manifest.embedding_model
        and len(query.vector) == 4 * manifest.dimension
    ]
    texts = [query.text for query in queries if query.vector is None and query.text is not None]
    parts = [np.stack(vectors)] if vectors else []
    parts += [questions_of_texts(texts, manifest, embedding)] if texts else []
    if not parts:
        return np.empty((0, manifest.dimension), np.float32)
    return _normalised(np.concatenate(parts))


def _normalised(vectors: Float32) -> Float32:
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    if vectors.ndim != 2 or not np.isfinite(norms).all():
        raise ConfigError(f"questions of shape {vectors.shape}, or not finite: give (n, dimension)")
    usable = norms[:, 0] > _NORM_MIN
    scaled: Float32 = (vectors[usable] / norms[usable]).astype(np.float32)
    return scaled

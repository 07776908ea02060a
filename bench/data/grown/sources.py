"""What a set grows from: real passages, their sentences and neighbours, and real questions."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from bench.core.progress import Tell
from bench.data.evaluation import (
    CORPUS,
    EvaluationData,
    Float32,
    distinct_order,
    normalised,
    read_passages,
    read_vectors,
)
from bench.data.grown.sentences import Sentences, embed_sentences
from carpool.embedding import EmbeddingSettings
from carpool.errors import ConfigError

QUESTIONS = ("queries-nq", "queries-hotpotqa")
NEIGHBOURS = 64
"""Passages near a passage: of its own subject among 16,000, and rarely drawn twice."""
_NEIGHBOURS_CHUNK_ROWS = 2048

Int64 = npt.NDArray[np.int64]


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """Real passages, the pieces that each consists of, and the passages near each.

    `pieces`: (pieces, dim) float32, row-normalised: each passage followed by its sentences.
    `first_piece`: (passages + 1,) int64, where the pieces of each begin. `neighbours`: (passages,
    k) int64, ascending in each row, the nearest other passages.
    """

    titles: tuple[str, ...]
    pieces: Float32
    first_piece: Int64
    neighbours: Int64

    @property
    def passage_count(self) -> int:
        """Real passages."""
        return len(self.titles)

    @property
    def sentence_count(self) -> int:
        """Pieces that are sentences."""
        return len(self.pieces) - self.passage_count

    def passages(self) -> Float32:
        """Returns the vectors of the passages alone: (passages, dim) float32, a copy."""
        return self.pieces[self.first_piece[:-1]]


def load_sources(
    data: EvaluationData, *, sentences: bool, embedding: EmbeddingSettings, cache: Path, tell: Tell
) -> Sources:
    """Returns what to grow from; sentences are embedded or taken from `cache`. Blocks.

    Raises `ConfigError` where a file is missing or the vectors are not those of the passages.
    """
    vectors = read_vectors(data.vectors_path(CORPUS))
    passages = read_passages(data.corpus_path)
    if len(passages) != len(vectors):
        raise ConfigError(
            f"{data.folder} has {len(passages)} passages and {len(vectors)} vectors; copy the data "
            "again"
        )
    found = None
    if sentences:
        texts = [(passage.title, passage.text) for passage in passages]
        found = embed_sentences(texts, embedding=embedding, cache=cache, tell=tell)
        if found.vectors.shape[1] != vectors.shape[1]:
            raise ConfigError(
                f"the model {embedding.model} makes vectors of {found.vectors.shape[1]} "
                "components, and the passages have "
                f"{vectors.shape[1]}: name the model of the data with --model"
            )
    return join_sources(tuple(passage.title for passage in passages), vectors, found)


def join_sources(titles: tuple[str, ...], vectors: Float32, sentences: Sentences | None) -> Sources:
    """Returns the sources of `vectors`, (passages, dim) float32 row-normalised, and sentences."""
    owners = np.arange(len(vectors))
    pieces = vectors
    if sentences is not None:
        owners = np.concatenate((owners, sentences.passages))
        pieces = np.concatenate((vectors, sentences.vectors))
    order = np.argsort(owners, kind="stable")  # a passage stays before its sentences
    counts = np.bincount(owners, minlength=len(vectors))
    return Sources(
        titles=titles,
        pieces=np.ascontiguousarray(pieces[order]),
        first_piece=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        neighbours=nearest_passages(vectors, min(NEIGHBOURS, len(vectors) - 1)),
    )


def nearest_passages(vectors: Float32, count: int) -> Int64:
    """Returns (rows, count) int64: the nearest other rows of each row, ascending. Blocks."""
    if not 2 <= count < len(vectors):
        raise ConfigError(
            f"{len(vectors)} passages are too few to grow from: each needs two others near it"
        )
    nearest = np.empty((len(vectors), count), dtype=np.int64)
    for start in range(0, len(vectors), _NEIGHBOURS_CHUNK_ROWS):
        scores = vectors[start : start + _NEIGHBOURS_CHUNK_ROWS] @ vectors.T
        rows = np.arange(len(scores))
        scores[rows, rows + start] = -np.inf
        nearest[start : start + len(scores)] = np.argpartition(-scores, count - 1, axis=1)[
            :, :count
        ]
    nearest.sort(axis=1)
    return nearest


def load_questions(data: EvaluationData, seed: int) -> Float32:
    """Returns all distinct real questions, shuffled by `seed`: (n, dim) float32, normalised."""
    read = (read_vectors(data.vectors_path(name)) for name in QUESTIONS)
    rows = np.concatenate([normalised(vectors) for vectors in read])
    found: Float32 = np.ascontiguousarray(rows[distinct_order(rows, seed)])
    return found

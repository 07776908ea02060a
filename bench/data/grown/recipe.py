"""How a grown document is made: which real pieces it draws, with which weights. Seeded."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from bench.data.evaluation import Float32
from bench.data.grown.sources import Int64, Sources

CHUNK_ROWS = 16_384
"""Rows drawn from one generator. Another number gives other documents."""
OWN_SENTENCE_WEIGHT_MAX = 0.5
"""The largest share of a document that is a sentence of its passage."""
SPREAD_WEIGHT = (0.5, 1.5)
"""How far a document goes from its passage, as a multiple of the spread."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What decides every vector of a grown set, with its sources.

    `spread`: how far a document goes from its passage, in lengths of the difference between two
    pieces near it.
    """

    row_count: int
    seed: int
    spread: float

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Yields [start, stop) of every chunk, in order."""
        for start in range(0, self.row_count, CHUNK_ROWS):
            yield start, min(start + CHUNK_ROWS, self.row_count)


class Draws(msgspec.Struct, frozen=True, kw_only=True):
    """The pieces and weights of the documents of a chunk: (rows,) each."""

    passage: Int64
    own: Int64
    own_weight: Float32
    towards: Int64
    towards_passage: Int64
    away: Int64
    away_passage: Int64
    step: Float32


def draw(sources: Sources, recipe: Recipe, start: int, stop: int) -> Draws:
    """Returns the draws of rows [start, stop), a chunk. Depends on recipe and sources only."""
    rows = stop - start
    random = np.random.default_rng((recipe.seed, start // CHUNK_ROWS))
    passage = np.arange(start, stop, dtype=np.int64) % sources.passage_count
    towards_passage, away_passage = _two_neighbours(sources, passage, random)
    return Draws(
        passage=passage,
        own=_piece(sources, passage, random),
        own_weight=random.uniform(0, OWN_SENTENCE_WEIGHT_MAX, rows).astype(np.float32),
        towards_passage=towards_passage,
        towards=_piece(sources, towards_passage, random),
        away_passage=away_passage,
        away=_piece(sources, away_passage, random),
        step=(random.uniform(*SPREAD_WEIGHT, rows) * recipe.spread).astype(np.float32),
    )


def mix(sources: Sources, draws: Draws) -> npt.NDArray[np.float16]:
    """Returns the documents of `draws`: (rows, dim) float16, row-normalised.

    document = normalise((1 - v) passage + v own piece + step (towards - away)), where `towards` and
    `away` are pieces of two passages near the passage. Their difference has the direction and
    length in which real texts of a subject differ; noise has not. Positive weights alone would pull
    all documents to the middle of their subject.
    """
    pieces = sources.pieces
    weight, step = draws.own_weight[:, None], draws.step[:, None]
    mixed = pieces[sources.first_piece[draws.passage]] * (1 - weight)
    mixed += pieces[draws.own] * weight
    mixed += (pieces[draws.towards] - pieces[draws.away]) * step
    mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
    return mixed.astype(np.float16)


def _two_neighbours(
    sources: Sources, passage: Int64, random: np.random.Generator
) -> tuple[Int64, Int64]:
    """Two different neighbours of each passage."""
    count = sources.neighbours.shape[1]
    first = random.integers(0, count, len(passage))
    second = (first + random.integers(1, count, len(passage))) % count
    return sources.neighbours[passage, first], sources.neighbours[passage, second]


def _piece(sources: Sources, passage: Int64, random: np.random.Generator) -> Int64:
    """A random piece of each passage: itself or one of its sentences."""
    first = sources.first_piece[passage]
    return first + random.integers(0, sources.first_piece[passage + 1] - first)

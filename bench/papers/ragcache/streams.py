"""Streams of prompts made of real questions: natural, by Zipf, and in the shape of RAGPulse."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from bench.data.evaluation import CORPUS, TRAFFIC, EvaluationData, read_vectors

StreamName = Literal["natural", "zipf", "ragpulse"]
RECENT_ASKS = 100
RECENT_SHARE = 0.49
REPEATED_LISTS_SHARE = 0.068
RAGPULSE_ZIPF = 0.8
"""RAGPulse, a trace of a RAG service: of its passages 49 % were in the last 100 requests, 6.8 % of
its requests repeat an ordered list of passages, and passages are popular by Zipf 0.8."""
_ROWS_AT_A_TIME = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """The row of a question, and those of its passages in the corpus, best first."""

    question: int
    passages: tuple[int, ...]


def natural_stream(data: EvaluationData, *, passages: int) -> tuple[Ask, ...]:
    """Returns all questions as they come, each with its exact best `passages`. Takes seconds."""
    corpus = read_vectors(data.vectors_path(CORPUS))
    vectors = read_vectors(data.vectors_path(TRAFFIC))
    asks: list[Ask] = []
    for begin in range(0, len(vectors), _ROWS_AT_A_TIME):
        scores = vectors[begin : begin + _ROWS_AT_A_TIME] @ corpus.T
        rows = np.argpartition(-scores, passages, axis=1)[:, :passages]
        order = np.lexsort((rows, -np.take_along_axis(scores, rows, axis=1)), axis=1)
        for best in np.take_along_axis(rows, order, axis=1).tolist():
            asks.append(Ask(question=len(asks), passages=tuple(best)))
    return tuple(asks)


def make_stream(name: StreamName, natural: Sequence[Ask], *, asks: int, seed: int) -> list[Ask]:
    """Returns `asks` requests made of the natural stream; the same for the same `seed`."""
    rng = np.random.default_rng(seed)
    match name:
        case "natural":
            return [natural[place % len(natural)] for place in range(asks)]
        case "zipf":
            order = rng.permutation(len(natural))
            drawn = rng.choice(len(natural), size=asks, p=_zipf(len(natural), 1.0))
            return [natural[order[rank]] for rank in drawn]
        case "ragpulse":
            return _ragpulse(natural, asks, rng)


def _zipf(ranks: int, exponent: float) -> npt.NDArray[np.float64]:
    weights = np.arange(1, ranks + 1, dtype=np.float64) ** -exponent
    shares: npt.NDArray[np.float64] = weights / weights.sum()
    return shares


def _ragpulse(natural: Sequence[Ask], asks: int, rng: np.random.Generator) -> list[Ask]:
    """Questions are the natural ones; which passages they get is drawn."""
    known = sorted({passage for ask in natural for passage in ask.passages})
    popular = rng.permutation(known)
    recent: deque[tuple[int, ...]] = deque(maxlen=RECENT_ASKS)
    by_zipf = _draws(popular, _zipf(len(popular), RAGPULSE_ZIPF), rng)
    stream = []
    seen = drawn_in_all = 0
    for place in range(asks):
        ask = natural[place % len(natural)]
        window = {passage for passages in recent for passage in passages}
        if recent and rng.random() < REPEATED_LISTS_SHARE:
            drawn = list(recent[rng.integers(len(recent))])
        else:
            drawn = []
            while len(drawn) < len(ask.passages):
                # Some draws by Zipf are recent by chance; what is missing is drawn of the recent.
                if recent and seen < RECENT_SHARE * drawn_in_all:
                    one = recent[rng.integers(len(recent))]
                    passage = one[rng.integers(len(one))]
                else:
                    passage = next(by_zipf)
                if passage not in drawn:
                    drawn.append(passage)
        drawn_in_all += len(drawn)
        seen += sum(passage in window for passage in drawn)
        recent.append(tuple(drawn))
        stream.append(Ask(question=ask.question, passages=tuple(drawn)))
    return stream


def _draws(
    items: npt.NDArray[np.int64], weights: npt.NDArray[np.float64], rng: np.random.Generator
) -> Iterator[int]:
    while True:
        yield from rng.choice(items, size=_ROWS_AT_A_TIME, p=weights).tolist()

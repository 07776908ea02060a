"""Streams of prompts of real questions, as token ids that are equal where texts are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bench.data.evaluation import CORPUS, TRAFFIC, EvaluationData, read_passages, read_vectors
from generator.settings import GeneratorSettings
from indexer.kmeans import faiss

CHARACTERS_A_TOKEN = 4.2
PASSAGE_TOKENS = 10
"""The number of a passage and the lines around it."""
SYSTEM_TOKENS, QUESTION_TOKENS = 56, 40
"""What is before the passages in every prompt, and what is behind them."""
IDS_A_TEXT = 1 << 20


class Ask(NamedTuple):
    """The row of a question, and those of its passages in the corpus, best first."""

    question: int
    passages: tuple[int, ...]


def natural_stream(data: EvaluationData, *, passages: int) -> list[Ask]:
    """Returns all questions as they come, each with its exact best `passages`. Takes seconds."""
    corpus = read_vectors(data.vectors_path(CORPUS))
    vectors = read_vectors(data.vectors_path(TRAFFIC))
    _, rows = faiss.knn(vectors, corpus, passages, metric=faiss.METRIC_INNER_PRODUCT)
    return [Ask(number, tuple(best)) for number, best in enumerate(rows.tolist())]


def zipf_stream(natural: Sequence[Ask], seed: int) -> list[Ask]:
    """Returns as many questions, drawn from the natural ones by Zipf 1.0."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(natural))
    weights = 1 / np.arange(1, len(natural) + 1)
    drawn = rng.choice(len(natural), size=len(natural), p=weights / weights.sum())
    return [natural[order[rank]] for rank in drawn]


def passage_tokens(data: EvaluationData) -> list[int]:
    """Returns the tokens of each passage in a prompt, from its characters."""
    chars_max = GeneratorSettings().passage_chars_max
    characters = (
        len(passage.title) + min(len(passage.text), chars_max)
        for passage in read_passages(data.corpus_path)
    )
    return [PASSAGE_TOKENS + round(count / CHARACTERS_A_TOKEN) for count in characters]


def rendered(ask: Ask, tokens: Sequence[int]) -> tuple[int, ...]:
    """Returns a prompt as token ids, its passages by their scores. `tokens`: of each passage."""
    ids = list(range(SYSTEM_TOKENS))
    for row in ask.passages:
        first = (row + 1) * IDS_A_TEXT
        ids += range(first, first + tokens[row])
    first = -(ask.question + 1) * IDS_A_TEXT
    ids += range(first, first + QUESTION_TOKENS)
    return tuple(ids)

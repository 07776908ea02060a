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
IDS_A_TEXT = FIRST_QUESTION = 1 << 20
RECENT_ASKS, RECENT_SHARE, REPEATED_SHARE = 100, 0.49, 0.068


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
    first = (FIRST_QUESTION + ask.question) * IDS_A_TEXT
    ids += range(first, first + QUESTION_TOKENS)
    return tuple(ids)


def ragpulse_stream(natural: Sequence[Ask], seed: int) -> list[Ask]:
    """Returns the natural questions with passages drawn in the shape of RAGPulse's trace.

    That is a trace of a RAG service (arXiv 2511.12979): `REPEATED_SHARE` of its requests repeat an
    ordered list of passages, `RECENT_SHARE` of the passages were in the last `RECENT_ASKS`
    requests, and passages are popular by Zipf 0.8.
    """
    rng = np.random.default_rng(seed)
    popular = rng.permutation(sorted({passage for ask in natural for passage in ask.passages}))
    weights = np.arange(1, len(popular) + 1) ** -0.8
    by_zipf = iter(rng.choice(popular, size=9 * len(natural), p=weights / weights.sum()).tolist())
    stream: list[Ask] = []
    seen = drawn = 0
    for ask in natural:
        recent = stream[-RECENT_ASKS:]
        known = {passage for each in recent for passage in each.passages}
        passages: list[int] = []
        if recent and rng.random() < REPEATED_SHARE:
            passages += recent[rng.integers(len(recent))].passages
        while len(passages) < len(ask.passages):
            # Some draws by Zipf are recent by chance; what is missing is drawn of the recent.
            if recent and seen < RECENT_SHARE * drawn:
                one = rng.choice(recent[rng.integers(len(recent))].passages).item()
            else:
                one = next(by_zipf)
            if one not in passages:
                passages.append(one)
        seen += sum(passage in known for passage in passages)
        drawn += len(passages)
        stream.append(Ask(ask.question, tuple(passages)))
    return stream

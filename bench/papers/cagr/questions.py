"""The questions of a figure: real texts, which of them warm up, and how they are cut into
batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import NamedTuple

import numpy as np

from bench.data.evaluation import EvaluationData
from bench.papers.cagr.plan import Dataset
from carpool.errors import ConfigError

FILES: dict[Dataset, str] = {
    "nq": "queries-nq",
    "hotpotqa": "queries-hotpotqa",
    "fever": "claims-fever",
}
WARM_UP_SHARE_MIN = 0.25


class Questions(NamedTuple):
    """Distinct texts. `measured` are asked once, in order: query 1 of a figure is the first of
    them. `warm_up`: the others.
    """

    measured: tuple[str, ...]
    warm_up: tuple[str, ...]


def load_questions(data: EvaluationData, dataset: Dataset, queries: int) -> Questions:
    """Returns the first `queries` distinct texts of a file to measure and the rest to warm up with,
    at least a quarter of all.

    Raises `ConfigError` where the file is missing or holds fewer than four.
    """
    texts = tuple(
        dict.fromkeys(question.text for question in data.questions(FILES[dataset]) if question.text)
    )
    count = min(queries, int(len(texts) * (1 - WARM_UP_SHARE_MIN)))
    if count < 3:
        raise ConfigError(
            f"{FILES[dataset]} holds {len(texts)} questions: too few to measure with; name other "
            "--data"
        )
    return Questions(texts[:count], texts[count:])


def batches(
    texts: Sequence[str], *, batch_min: int, batch_max: int, rng: np.random.Generator
) -> Iterator[tuple[str, ...]]:
    """Yields `texts` in batches of a random size, both bounds included (section 4.1, Traffic); the
    last holds what is left.
    """
    rest = iter(texts)
    while batch := tuple(islice(rest, int(rng.integers(batch_min, batch_max + 1)))):
        yield batch


def endless(
    texts: Sequence[str], *, batch_min: int, batch_max: int, rng: np.random.Generator
) -> Iterator[tuple[str, ...]]:
    """Yields such batches for ever, from the start again when all were asked: for warming up."""
    rest = cycle(texts)
    while True:
        yield tuple(islice(rest, int(rng.integers(batch_min, batch_max + 1))))

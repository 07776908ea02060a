"""The questions of a figure: real texts to measure and to warm up with, in random batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from bench.data.evaluation import EvaluationData
from bench.papers.cagr.plan import FigureDataset
from carpool.errors import ConfigError

FILES: dict[FigureDataset, str] = {
    "nq": "queries-nq",
    "hotpotqa": "queries-hotpotqa",
    "fever": "claims-fever",
}
WARM_UP_SHARE_MIN = 0.25


class FigureQuestions(NamedTuple):
    """Distinct texts. `measured`: asked once, in order; `warm_up`: the others."""

    measured: tuple[str, ...]
    warm_up: tuple[str, ...]


def load_questions(data: EvaluationData, dataset: FigureDataset, queries: int) -> FigureQuestions:
    """Returns the first `queries` distinct texts to measure, the rest to warm up with.

    The rest is at least a quarter. Raises `ConfigError` for a file that is missing or too small.
    """
    texts = tuple(
        dict.fromkeys(question.text for question in data.questions(FILES[dataset]) if question.text)
    )
    count = min(queries, int(len(texts) * (1 - WARM_UP_SHARE_MIN)))
    if count < 3:
        raise ConfigError(
            f"{FILES[dataset]} has {len(texts)} questions, too few to measure with; name another "
            "folder with --data"
        )
    return FigureQuestions(texts[:count], texts[count:])


def batches(
    texts: Iterable[str], *, batch_min: int, batch_max: int, rng: np.random.Generator
) -> Iterator[tuple[str, ...]]:
    """Yields `texts` in batches of a random size, both bounds included (section 4.1, Traffic)."""
    rest = iter(texts)
    while batch := tuple(islice(rest, int(rng.integers(batch_min, batch_max + 1)))):
        yield batch

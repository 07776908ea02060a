"""The questions of a run: vectors out of a file, distinct, in a seeded order."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.data.evaluation import distinct_order, read_vectors
from bench.search.contestants.contestant import Float32
from carpool.errors import ConfigError


def read_question_vectors(path: Path) -> Float32:
    """Returns the questions of a .npy file: (n, dim) float32, row-normalised.

    Raises `ConfigError` for a bad file.
    """
    if not path.is_file():
        raise ConfigError(
            f"there are no questions at {path}: give a .npy file of (questions, dimension) floats"
        )
    return read_vectors(path)


def choose_questions(
    vectors: Float32, dimension: int, count: int, seed: int
) -> tuple[Float32, Float32]:
    """Returns `count` distinct questions in the random order of a seed, and those that are left.

    Both are (questions, dim) float32. Raises `ConfigError` where the dimension differs, or there
    are fewer than `count`.
    """
    if vectors.ndim != 2 or vectors.shape[1] != dimension:
        raise ConfigError(
            f"the questions have vectors of shape {vectors.shape}, and the index is of dimension "
            f"{dimension}: give --questions the vectors of the model that the index was built with"
        )
    order = distinct_order(vectors, seed)
    if len(order) < count:
        raise ConfigError(
            f"there are {len(order)} distinct questions, and --queries asks for "
            f"{count}: a question asked twice finds its clusters in memory. Ask for fewer, or name "
            "a file of more with --questions"
        )
    return np.ascontiguousarray(vectors[order[:count]]), vectors[order[count:]]

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


def halves(vectors: Float32, dimension: int, seed: int) -> tuple[Float32, Float32]:
    """Returns the distinct questions in the random order of a seed, in two halves.

    Both are (questions, dim) float32. Raises `ConfigError` where the dimension differs, or there
    are fewer than two.
    """
    if vectors.ndim != 2 or vectors.shape[1] != dimension or len(vectors) < 2:
        raise ConfigError(
            f"the questions have shape {vectors.shape}, and the rows are of dimension {dimension}: "
            "give two or more vectors of the model that the rows are of"
        )
    one, other = np.array_split(vectors[distinct_order(vectors, seed)], 2)
    return one, other

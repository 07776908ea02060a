"""The questions of `carpool bench search`: vectors out of files, distinct, in a seeded order."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from bench.data.evaluation import DATA_VARIABLE, distinct_order, find_data, read_vectors
from bench.data.grown.fitted import fitted_count
from bench.search.contestants.contestant import Float32
from carpool.errors import ConfigError

DATA_QUESTIONS = ("queries-hotpotqa", "queries-nq")
"""Questions that are asked where --questions names none."""


class QuestionVectors(msgspec.Struct, frozen=True, kw_only=True):
    """Questions that may be asked of an index: `vectors` (n, dim) float32, row-normalised.

    `left_out`: how many others chose the spread of a grown set, and are never asked.
    """

    vectors: Float32
    left_out: int


def read_question_vectors(paths: Sequence[Path]) -> QuestionVectors:
    """Returns the questions of some files, joined. Raises `ConfigError` for a bad file."""
    vectors: list[Float32] = []
    left_out = 0
    for path in paths:
        rows = read_vectors(path)
        fitted = fitted_count(path, len(rows))
        vectors.append(rows[: len(rows) - fitted])
        left_out += fitted
    if len({rows.shape[1] for rows in vectors}) > 1:
        raise ConfigError(
            f"the questions in {', '.join(map(str, paths))} are of different dimensions: name one "
            "model's"
        )
    return QuestionVectors(vectors=np.concatenate(vectors), left_out=left_out)


def question_paths(
    questions: Sequence[Path],
    indexes: int,
    data: Path | None,
    environ: Mapping[str, str] = os.environ,
) -> list[list[Path]]:
    """Returns the files to ask: one list for all indexes, or one list for each of them.

    Without `questions` they are those of the evaluation data. Raises `ConfigError` where a file is
    missing, or their number does not fit.
    """
    if questions:
        for path in questions:
            if not path.is_file():
                raise ConfigError(
                    f"there are no questions at {path}: give a .npy file of (questions, dimension) "
                    "floats"
                )
        if len(questions) not in (1, indexes):
            raise ConfigError(
                f"--questions is given {len(questions)} times and --index {indexes} times: give "
                "--questions once for all, or once for each --index, in the same order"
            )
        return [[path] for path in questions]
    if data is None and not environ.get(DATA_VARIABLE):
        raise ConfigError(
            "which questions? Name a .npy file of their vectors with --questions, or the "
            f"evaluation data with --data or {DATA_VARIABLE}"
        )
    found = find_data(data, environ)
    return [[found.vectors_path(name) for name in DATA_QUESTIONS]]


def choose_questions(
    asked: QuestionVectors, dimension: int, count: int, seed: int
) -> tuple[Float32, Float32]:
    """Returns `count` distinct questions in the random order of a seed, and those that are left.

    Both are (questions, dim) float32. Raises `ConfigError` where the dimension differs, or there
    are fewer than `count`.
    """
    vectors = asked.vectors
    if vectors.ndim != 2 or vectors.shape[1] != dimension:
        raise ConfigError(
            f"the questions have vectors of shape {vectors.shape}, and the index is of dimension "
            f"{dimension}: another model made them. Give --questions the vectors of the model that "
            "the index was built with"
        )
    order = distinct_order(vectors, seed)
    if len(order) < count:
        raise ConfigError(
            f"there are {len(order)} distinct questions (and {asked.left_out} that chose the "
            f"spread of a grown set, which are never asked), and --queries asks for {count}: a "
            "question asked twice finds its clusters in memory. Ask for fewer, or name a file of "
            "more with --questions"
        )
    return np.ascontiguousarray(vectors[order[:count]]), vectors[order[count:]]

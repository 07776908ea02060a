"""Where the questions of a run come from: files of vectors, less what a grown set was fitted
with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from bench.data.evaluation import DATA_VARIABLE, find_data, read_vectors
from bench.data.grown.fitted import fitted_count
from bench.retrieval.contestant import Float32
from carpool.errors import ConfigError

DATA_QUESTIONS = ("queries-hotpotqa", "queries-nq")
"""Whose vectors are asked where --questions names none."""


class QuestionFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of questions. `left_out`: the last of its `rows`, which a grown set was fitted with
    and is never asked.
    """

    name: str
    rows: int
    left_out: int


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What can be asked of an index: `vectors` (n, dim) float32, row-normalised, and the files that
    they are from.
    """

    vectors: Float32
    files: tuple[QuestionFile, ...]

    @property
    def left_out(self) -> int:
        """Rows that are never asked."""
        return sum(file.left_out for file in self.files)


def read_asked(paths: Sequence[Path]) -> Asked:
    """Returns the questions of some files, one after the other. Raises `ConfigError` where one
    cannot be read.
    """
    vectors: list[Float32] = []
    files: list[QuestionFile] = []
    for path in paths:
        rows = read_vectors(path)
        left_out = fitted_count(path, len(rows))
        vectors.append(rows[: len(rows) - left_out])
        files.append(
            QuestionFile(name=f"{path.parent.name}/{path.name}", rows=len(rows), left_out=left_out)
        )
    if len({rows.shape[1] for rows in vectors}) > 1:
        raise ConfigError(
            f"the questions in {', '.join(map(str, paths))} are of different dimensions: name one "
            "model's"
        )
    return Asked(vectors=np.concatenate(vectors), files=tuple(files))


def question_paths(
    questions: Sequence[Path], indexes: int, data: Path | None, environ: Mapping[str, str]
) -> list[list[Path]]:
    """Returns the files to ask, once for all or once for each of `indexes`. `questions` given,
    those; else those of the data.

    Raises `ConfigError` where they are not there, or are neither one nor as many as there are
    indexes.
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

"""The evaluation data: a folder with a corpus, claims and their evidence, questions, and vectors.

`CORPUS`, `CLAIMS` with `EVIDENCE`, `TRAFFIC`; their vectors are in `embeddings/`, one row for each
line of the file of the same name. Any corpus may have these names; ids of evidence are ids of
passages.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from carpool.errors import ConfigError
from producers.read_questions import Question, read_questions

Float32 = npt.NDArray[np.float32]

DATA_VARIABLE = "CARPOOL_DATA"
CORPUS = "wikipedia-16k"
CLAIMS = "claims-fever"
EVIDENCE = "qrels-fever.tsv"
TRAFFIC = "queries-hotpotqa"
QUESTIONS = ("queries-nq", TRAFFIC)


class CorpusPassage(msgspec.Struct, frozen=True):
    """A passage as a line of the corpus has it."""

    id: str | int
    title: str = ""
    text: str = ""


class EvaluationData(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of evaluation data. A missing file is an error only where it is asked for."""

    folder: Path

    @property
    def corpus_path(self) -> Path:
        """The passages, JSON lines."""
        return self.file(f"{CORPUS}.jsonl.gz")

    def vectors_path(self, name: str) -> Path:
        """The vectors of `name`, (rows, dim) floats in a .npy file."""
        return self.file(f"embeddings/{name}.npy")

    def questions(self, name: str, limit: int | None = None) -> tuple[Question, ...]:
        """Returns the questions `name`, or the first `limit` of them."""
        return read_questions(self.file(f"{name}.jsonl.gz"), limit)

    def file(self, name: str) -> Path:
        """Returns the path of a file. Raises `ConfigError` where there is none."""
        path = self.folder / name
        if not path.is_file():
            raise ConfigError(
                f"the evaluation data at {self.folder} have no {name}: this benchmark measures on "
                f"it; name the right folder with --data or {DATA_VARIABLE}"
            )
        return path


def find_data(folder: Path | None, environ: Mapping[str, str] = os.environ) -> EvaluationData:
    """Returns the data in `folder`, else in the folder that CARPOOL_DATA names.

    Raises `ConfigError` where there is neither.
    """
    named = folder or (Path(environ[DATA_VARIABLE]) if environ.get(DATA_VARIABLE) else None)
    if named is None:
        raise ConfigError(
            f"which evaluation data? Name their folder with --data, or set {DATA_VARIABLE}"
        )
    if not named.is_dir():
        raise ConfigError(f"there is no folder {named}; check --data or {DATA_VARIABLE}")
    return EvaluationData(folder=named)


def read_evidence(path: Path) -> dict[str, frozenset[str]]:
    """Returns passage ids by query id. Raises `ConfigError` that names a bad line."""
    evidence: dict[str, frozenset[str]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        query_id, _, passage_id = line.partition("\t")
        if not passage_id or "\t" in passage_id:
            raise ConfigError(f"{path}:{number}: a line is: query id, tab, passage id")
        evidence[query_id] = evidence.get(query_id, frozenset()) | {passage_id}
    return evidence


def read_passages(path: Path) -> tuple[CorpusPassage, ...]:
    """Returns the passages of a gzip file of JSON lines, in order.

    Raises `ConfigError` that names a bad line, or a file that cannot be read.
    """
    decoder = msgspec.json.Decoder(CorpusPassage)
    passages: list[CorpusPassage] = []
    number = 0
    try:
        with gzip.open(path, "rb") as lines:
            for line in lines:
                number += 1
                if line.strip():
                    passages.append(decoder.decode(line))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}:{number}: not a passage: {error}") from error
    except (OSError, EOFError) as error:
        raise ConfigError(
            f"cannot read the passages {path} ({error}); copy the data again"
        ) from error
    return tuple(passages)


def read_vectors(path: Path) -> Float32:
    """Returns (rows, dim) float32, row-normalised, of a .npy file of floats.

    Raises `ConfigError` that names the file where it has no rows, or a row without a direction.
    """
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read vectors from {path}: {error}") from error
    if loaded.ndim != 2 or not len(loaded) or not np.issubdtype(loaded.dtype, np.floating):
        raise ConfigError(
            f"{path} contains {loaded.dtype} of shape {loaded.shape}; it must be rows of floats"
        )
    vectors = loaded.astype(np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    wrong = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if len(wrong):
        raise ConfigError(
            f"{path}: the vector in row {wrong[0]} (the first is 0) is zero or not finite, so "
            "it has no direction: make the vectors anew "
            f"({len(wrong)} of {len(vectors)} are like that)"
        )
    divided: Float32 = (vectors / lengths).astype(np.float32)
    return divided


def distinct_order(vectors: Float32, seed: int) -> npt.NDArray[np.int64]:
    """Returns the first row of each distinct vector of (rows, dim), in an order of `seed`."""
    _, first = np.unique(vectors, axis=0, return_index=True)
    return np.random.default_rng(seed).permutation(np.sort(first))


def real_questions(data: EvaluationData, seed: int) -> Float32:
    """Returns all distinct real questions, shuffled by `seed`: (n, dim) float32, normalised."""
    rows = np.concatenate([read_vectors(data.vectors_path(name)) for name in QUESTIONS])
    found: Float32 = np.ascontiguousarray(rows[distinct_order(rows, seed)])
    return found

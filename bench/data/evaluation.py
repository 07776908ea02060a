"""The evaluation data: a folder with a corpus, claims and their evidence, questions, and vectors.

`CORPUS`, `CLAIMS` with `EVIDENCE`, `TRAFFIC`; their vectors are in `embeddings/`, one row for each
line of the file of the same name. Any corpus may have these names; ids of evidence are ids of
passages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from carpool.arrays import Float32, Int64
from carpool.disk.documents import Passage
from carpool.errors import ConfigError
from indexer.corpus import CorpusReader
from indexer.plan.state import LineProblem
from indexer.settings import IndexerSettings
from indexer.vectors import check_stored, open_precomputed
from producers.read_questions import Question, read_questions

DATA_VARIABLE = "CARPOOL_DATA"
CORPUS = "wikipedia-16k"
CLAIMS = "claims-fever"
EVIDENCE = "qrels-fever.tsv"
TRAFFIC = "queries-hotpotqa"
NATURAL = "queries-nq"
QUESTIONS = (NATURAL, TRAFFIC)


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

    def questions(self, name: str) -> tuple[Question, ...]:
        """Returns the questions `name`."""
        return read_questions(self.file(f"{name}.jsonl.gz"))

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
    """Returns the data in `folder`, else in that of CARPOOL_DATA. Raises `ConfigError`."""
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


def read_passages(path: Path) -> tuple[Passage, ...]:
    """Returns the passages of a corpus, in order. Raises `ConfigError` that names a bad line."""
    passages = []
    for found in CorpusReader(path, passage_bytes_max=IndexerSettings().passage_bytes_max):
        if isinstance(found, LineProblem):
            raise ConfigError(f"{path}:{found.line}: {found.why}")
        passages.append(found)
    return tuple(passages)


def read_vectors(path: Path) -> Float32:
    """Returns the vectors of a .npy file: (rows, dim) float32, row-normalised.

    Raises `ConfigError` that names the file where it has none, or the first row that is wrong.
    """
    vectors = open_precomputed(path)
    check_stored(vectors, str(path), lambda _: None)
    return np.concatenate([chunk.copy() for _, chunk in vectors.chunks()])


@contextmanager
def new_folder(path: Path) -> Iterator[None]:
    """Makes a folder that a set is written to. Raises `ConfigError` where that fails."""
    try:
        path.mkdir(parents=True)
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {path} ({error}); remove it, and make room") from error


def distinct_order(vectors: Float32, seed: int) -> Int64:
    """Returns the first row of each distinct vector of (rows, dim), in an order of `seed`."""
    _, first = np.unique(vectors, axis=0, return_index=True)
    return np.random.default_rng(seed).permutation(np.sort(first))


def real_questions(data: EvaluationData, seed: int) -> Float32:
    """Returns all distinct real questions, shuffled by `seed`: (n, dim) float32, normalised."""
    rows = np.concatenate([read_vectors(data.vectors_path(name)) for name in QUESTIONS])
    found: Float32 = np.ascontiguousarray(rows[distinct_order(rows, seed)])
    return found

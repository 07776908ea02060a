"""The corpus of all parts: a base that is grown out of real passages, and documents over it.

Document n is the row n of the base, until it is put. Each text says its document's revision, which
is 0 in the base.
"""

from __future__ import annotations

import re
import shutil
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from bench.data.evaluation import (
    CORPUS,
    QUESTIONS,
    find_data,
    new_folder,
    read_passages,
    read_vectors,
)
from bench.data.grown import grow, usual_spread
from bench.data.index import BenchIndex, built
from bench.live.options import LiveOptions
from carpool.corpus.base_folders import BASES_FOLDER
from carpool.disk.documents import Passage
from carpool.disk.manifest import MANIFEST_NAME, read_manifest
from indexer.settings import IndexerConfig
from producers.build_query import QueryRecord
from producers.documents import build_document
from producers.read_questions import Question
from schemas.document import Document, DocumentKey, DocumentPassage, Position
from schemas.hit import Hit

REVISION = re.compile(r"Revision (\d+)\. ")


@dataclass(frozen=True)
class LiveSet:
    """`vectors`: (rows, dim) float16, of the base. `questions`: real ones, with vectors."""

    index: BenchIndex
    vectors: npt.NDArray[np.float16]
    passages: Sequence[Passage]
    questions: tuple[Question, ...]

    def passage(self, row: int, revision: int) -> Passage:
        """Returns a real passage as it stands in a revision."""
        real = self.passages[row % len(self.passages)]
        return msgspec.structs.replace(real, text=f"Revision {revision}. {real.text}")

    def document(
        self, number: int, revision: int, passages: int, now_us: int, *, has_vectors: bool = True
    ) -> QueryRecord:
        """Returns the record of a document: passages of other rows, with their vectors."""
        model, made = self.index.manifest.embedding_model, []
        for row in self._rows(number, revision, passages):
            one = self.passage(row, revision)
            given = {"vector": self.vectors[row].astype("<f4").tobytes(), "embedding_model": model}
            extra = given if has_vectors else {}
            made.append(DocumentPassage(text=one.text, title=one.title, **extra))
        return build_document(
            DocumentKey("", name_of(number)), Document(passages=tuple(made)), now_us
        )

    def text_bytes(self, number: int, revision: int, passages: int) -> int:
        """Returns the bytes of texts and titles of a document."""
        own = [self.passage(row, revision) for row in self._rows(number, revision, passages)]
        return sum(len(each.text.encode()) + len(each.title.encode()) for each in own)

    def _rows(self, number: int, revision: int, passages: int) -> list[int]:
        first = number + 7_919 * revision
        return [(first + n) % len(self.vectors) for n in range(passages)]

    def asked(self, count: int, first: int = 0) -> list[Question]:
        """Returns `count` questions from number `first` on; they repeat after thousands."""
        return [self.questions[(first + n) % len(self.questions)] for n in range(count)]


def name_of(number: int) -> str:
    """Returns the id of a document."""
    return f"row-{number}"


def live_set(options: LiveOptions) -> LiveSet:
    """Returns the set in the folder of the benchmark, grown and built where it is not there.

    Bases of earlier runs are removed. Blocks: minutes for 200,000 rows.
    """
    data, folder = find_data(options.data), (options.work / f"live-{options.rows}").resolve()
    real, index_dir = read_passages(data.corpus_path), folder / "index"
    if not (index_dir / MANIFEST_NAME).exists():
        shutil.rmtree(folder, ignore_errors=True)
        vectors, titles = read_vectors(data.vectors_path(CORPUS)), [each.title for each in real]
        with new_folder(folder):
            spread = usual_spread(options.rows)
            grow(vectors, titles, folder, rows=options.rows, seed=options.seed, spread=spread)
            _write_corpus(folder / "corpus.jsonl", real, options.rows)
        config, vectors_path = IndexerConfig(), folder / "vectors.npy"
        built(folder / "corpus.jsonl", index_dir, config, vectors=vectors_path, seed=options.seed)
    shutil.rmtree(index_dir / BASES_FOLDER, ignore_errors=True)
    questions = [
        msgspec.structs.replace(one, id=None, vector=vector.astype("<f4").tobytes())
        for name in QUESTIONS
        for one, vector in zip(
            data.questions(name), read_vectors(data.vectors_path(name)), strict=True
        )
    ]
    index = BenchIndex(dir=index_dir, manifest=read_manifest(index_dir))
    return LiveSet(index, np.load(folder / "vectors.npy", mmap_mode="r"), real, tuple(questions))


def _write_corpus(path: Path, real: Sequence[Passage], rows: int) -> None:
    with path.open("wb") as file:
        for row in range(rows):
            one = real[row % len(real)]
            text = f"Revision 0. {one.text}"
            file.write(msgspec.json.encode({"id": name_of(row), "title": one.title, "text": text}))
            file.write(b"\n")


class PutPlace(NamedTuple):
    """A put that brokers have: where, and when they said so, epoch microseconds."""

    name: str
    revision: int
    partition: int
    offset: int
    acked_us: int

    @property
    def position(self) -> dict[int, int]:
        """See `HasPosition`."""
        return {self.partition: self.offset}


class Truth:
    """Which revision of each document there was at a position. Pure."""

    def __init__(self, puts: Iterable[PutPlace]) -> None:
        self._puts: dict[str, list[PutPlace]] = {}
        for put in sorted(puts, key=lambda each: each.offset):
            self._puts.setdefault(put.name, []).append(put)

    def is_mixed(self, hits: Sequence[Hit], position: Position, base: Position) -> bool:
        """Whether hits do not fit what an answer states: its position, and that of its base.

        A passage is found once, and is of the revision that its document had at the position, which
        is not before that of the base.
        """
        is_before = any(position.get(at, -1) < offset for at, offset in base.items())
        is_twice = len({hit.doc_id for hit in hits}) < len(hits)
        return is_before or is_twice or not all(self._fits(hit, position) for hit in hits)

    def _fits(self, hit: Hit, position: Mapping[int, int]) -> bool:
        puts = self._puts.get(hit.doc_id.partition("#")[0], [])
        reached = position.get(puts[0].partition, -1) if puts else -1
        at = bisect_right(puts, reached, key=lambda each: each.offset)
        told = REVISION.match(hit.text)
        return told is not None and int(told[1]) == (puts[at - 1].revision if at else 0)

"""The corpus of all parts: a base that is grown out of real passages, and documents over it.

Document n is the row n of the base, until it is put. Each text says its document's revision, which
is 0 in the base.
"""

from __future__ import annotations

import re
import shutil
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from bench.data import evaluation
from bench.data.grown import grow, usual_spread
from bench.data.index import BenchIndex, built
from bench.live.options import PASSAGES, LiveOptions
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

    folder: Path
    index: BenchIndex
    vectors: npt.NDArray[np.float16]
    passages: Sequence[Passage]
    questions: tuple[Question, ...]

    def passage(self, row: int, revision: int) -> Passage:
        """Returns a real passage as it stands in a revision."""
        real = self.passages[row % len(self.passages)]
        return msgspec.structs.replace(real, text=f"Revision {revision}. {real.text}")

    def document(self, number: int, revision: int, *, has_vectors: bool) -> tuple[QueryRecord, int]:
        """Returns the record of a document, passages of other rows, and the bytes of its texts."""
        model, made = self.index.manifest.embedding_model, list[DocumentPassage]()
        for at in range(PASSAGES):
            row = (number + 7_919 * revision + at) % len(self.vectors)
            one, vector = self.passage(row, revision), self.vectors[row].astype("<f4").tobytes()
            given = {"vector": vector, "embedding_model": model} if has_vectors else {}
            fields = {"text": one.text, "title": one.title, **given}
            made.append(msgspec.convert(fields, DocumentPassage))
        document, now_us = Document(passages=tuple(made)), time.time_ns() // 1_000
        text_bytes = sum(len(f"{one.title}{one.text}".encode()) for one in made)
        return build_document(DocumentKey("", f"row-{number}"), document, now_us), text_bytes


def live_set(options: LiveOptions, nlist: int | None = None) -> LiveSet:
    """Returns the set in the folder of the benchmark, grown and built where it is not there.

    `nlist`: None: the default of the rows. Blocks: minutes for 200,000 rows.
    """
    data = evaluation.find_data(options.data)
    name = f"live-{options.rows}" + (f"-{nlist}" if nlist else "")
    folder = (options.work / name).resolve()
    real = evaluation.read_passages(data.corpus_path)
    index_dir, corpus = folder / "index", folder / "corpus.jsonl"
    if not (index_dir / MANIFEST_NAME).exists():
        shutil.rmtree(folder, ignore_errors=True)
        vectors = evaluation.read_vectors(data.vectors_path(evaluation.CORPUS))
        titles, spread = [each.title for each in real], usual_spread(options.rows)
        with evaluation.new_folder(folder):
            grow(vectors, titles, folder, rows=options.rows, seed=options.seed, spread=spread)
            names = (f"row-{row}" for row in range(options.rows))
            write_corpus(corpus, names, (real[row % len(real)] for row in range(options.rows)))
        vectors_path = folder / "vectors.npy"
        wishes = {"vectors": vectors_path, "nlist": nlist, "seed": options.seed}
        built(corpus, index_dir, IndexerConfig(), **wishes)
    questions = [
        msgspec.structs.replace(one, id=None, vector=vector.astype("<f4").tobytes())
        for name in evaluation.QUESTIONS
        for one, vector in zip(
            data.questions(name), evaluation.read_vectors(data.vectors_path(name)), strict=True
        )
    ]
    index = BenchIndex(dir=index_dir, manifest=read_manifest(index_dir))
    rows = np.load(folder / "vectors.npy", mmap_mode="r")
    return LiveSet(folder, index, rows, real, tuple(questions))


def write_corpus(path: Path, names: Iterable[str], passages: Iterable[Passage]) -> None:
    """Writes passages in their first revision, under these names, as JSON lines."""
    with path.open("wb") as file:
        for name, one in zip(names, passages, strict=True):
            line = {"id": name, "title": one.title, "text": f"Revision 0. {one.text}"}
            file.write(msgspec.json.encode(line) + b"\n")


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

    def is_mixed(self, hits: Sequence[Hit], position: Position) -> bool:
        """Whether a passage is there twice, or of another revision than its document had then."""
        is_twice = len({hit.doc_id for hit in hits}) < len(hits)
        return is_twice or not all(self._fits(hit, position) for hit in hits)

    def _fits(self, hit: Hit, position: Position) -> bool:
        puts = self._puts.get(hit.doc_id.partition("#")[0], [])
        reached = position.get(puts[0].partition, -1) if puts else -1
        at = bisect_right(puts, reached, key=lambda each: each.offset)
        told = REVISION.match(hit.text)
        return told is not None and int(told[1]) == (puts[at - 1].revision if at else 0)

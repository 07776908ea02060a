"""The files of a grown set: vectors, documents, questions, and `grown.json`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from bench.core.progress import Tell
from bench.data.grown.behaviour import Acceptance
from bench.data.grown.fitted import GROWN_NAME
from bench.data.grown.recipe import Draws, Recipe, draw, mix
from bench.data.grown.sources import Sources
from carpool.disk.files import fsync_folder, write_atomically
from indexer.corpus import file_sha256

FORMAT = "grown-v0"
VECTORS_NAME = "vectors.npy"
CORPUS_NAME = "corpus.jsonl"
QUERIES_NAME = "queries.npy"


class GrownSet(msgspec.Struct, frozen=True, kw_only=True):
    """How a set was made and judged.

    `source_sha256`: of the vectors of the passages. `files`: SHA-256 by name.
    """

    format: str = FORMAT
    recipe: Recipe
    passages: int
    sentences: int
    neighbours: int
    questions_judged: int
    acceptance: Acceptance
    source_sha256: str
    files: dict[str, str]


def write_vectors(path: Path, sources: Sources, recipe: Recipe, tell: Tell) -> None:
    """Writes all documents of `recipe` to a .npy file, (rows, dim) float16, in chunks. Blocks."""
    with path.open("wb") as file:
        header = {
            "descr": "<f2",
            "fortran_order": False,
            "shape": (recipe.row_count, sources.pieces.shape[1]),
        }
        np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]
        for start, stop in recipe.chunks():
            file.write(
                mix(sources, draw(sources, recipe, start, stop)).astype("<f2", copy=False).tobytes()
            )
            tell("rows grown", stop, recipe.row_count)


def write_documents(folder: Path, sources: Sources, recipe: Recipe, tell: Tell) -> None:
    """Writes a line for each row: its id and its passages. Blocks."""
    encoder = msgspec.json.Encoder()
    with (folder / CORPUS_NAME).open("wb") as file:
        for start, stop in recipe.chunks():
            documents = _documents(sources, draw(sources, recipe, start, stop), start)
            file.write(b"".join(encoder.encode(document) + b"\n" for document in documents))
            tell("documents written", stop, recipe.row_count)


def _documents(sources: Sources, draws: Draws, start: int) -> list[dict[str, str]]:
    names = (draws.passage.tolist(), draws.towards_passage.tolist(), draws.away_passage.tolist())
    titles = sources.titles
    return [
        {
            "id": f"grown-{row}",
            "title": titles[passage],
            "text": f"Grown from {titles[passage]!r}, towards {titles[towards]!r} and away from "
            f"{titles[away]!r}.",
        }
        for row, (passage, towards, away) in enumerate(zip(*names, strict=True), start=start)
    ]


def publish(folder: Path, out: Path, found: GrownSet) -> GrownSet:
    """Writes `grown.json` with checksums, moves the folder to `out`, and returns it. Blocks."""
    names = (VECTORS_NAME, CORPUS_NAME, QUERIES_NAME)
    files = {name: file_sha256(folder / name, "grown set") for name in names}
    found = msgspec.structs.replace(found, files=files)
    write_atomically(
        folder / GROWN_NAME, msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
    )
    if out.is_dir():
        out.rmdir()  # it is empty
    folder.rename(out)
    fsync_folder(out.parent)
    return found

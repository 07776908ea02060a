"""Writes the stored sample of the current format: an index and its expected search results.

python -m tests.compat.make v2-float32

Run it once, when a format or a variant of one is added, and commit the folder. An existing sample
is never rebuilt: it represents indexes that users have.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from carpool.disk.centroids import probe
from tests.disk.helpers import Content, make_content, normalised, write_index

SAMPLES = Path(__file__).parent
EXPECTED_NAME = "expected.json"
VARIANTS = {"v2-float32": "float32", "v2-float16": "float16", "v2-int4": "float32"}
QUERY_COUNT = 8
TOP_K = 5


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """Expected results of a query: probed clusters, nearest first, and the best documents."""

    query: tuple[float, ...]
    nprobe: int
    clusters: tuple[int, ...]
    scores: tuple[float, ...]
    doc_ids: tuple[str, ...]
    titles: tuple[str, ...]
    texts: tuple[str, ...]


def search(content: Content, query: npt.NDArray[np.float32], nprobe: int) -> Expected:
    """Searches `content` by sorting every row of the probed clusters."""
    clusters = probe(content.centroids, query[None, :], nprobe)[0]
    rows = np.concatenate([content.clusters[cluster] for cluster in clusters])
    vectors = content.vectors[rows].astype(np.float64)
    scores = vectors @ query.astype(np.float64)
    best = np.lexsort((rows, -scores))[:TOP_K]
    found = [content.documents[row] for row in rows[best]]
    return Expected(
        query=tuple(query.tolist()),
        nprobe=nprobe,
        clusters=tuple(clusters.tolist()),
        scores=tuple(scores[best].round(9).tolist()),
        doc_ids=tuple(document.doc_id for document in found),
        titles=tuple(document.title for document in found),
        texts=tuple(document.text for document in found),
    )


def make_sample(folder: Path, variant: str) -> None:
    """Writes the sample `variant` into `folder`, which must not exist."""
    folder.mkdir()
    vector_dtype = VARIANTS[variant]
    content = make_content(row_counts=(3, 0, 60, 16, 16, 20), dimension=60, corpus=7, seed=7)
    stored = content.vectors.astype(vector_dtype).astype(np.float32)
    content = replace(content, vectors=stored)
    write_index(folder, content, vector_dtype=vector_dtype)  # type: ignore[arg-type]
    queries = normalised(np.random.default_rng(8).standard_normal((QUERY_COUNT, 60)))
    expected = [search(content, query, 1 + number % 6) for number, query in enumerate(queries)]
    (folder / EXPECTED_NAME).write_bytes(
        msgspec.json.format(msgspec.json.encode(expected), indent=1) + b"\n"
    )


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in VARIANTS:
        sys.exit(f"usage: python -m tests.compat.make {'|'.join(VARIANTS)}")
    if (SAMPLES / sys.argv[1]).exists():
        sys.exit(
            f"{SAMPLES / sys.argv[1]} is there already; a sample is never made anew. Add a new "
            "variant instead"
        )
    make_sample(SAMPLES / sys.argv[1], sys.argv[1])

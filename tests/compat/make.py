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

from carpool.digest import digest_of
from carpool.disk.centroids import probe
from carpool.disk.document_keys import DOCUMENT_KEYS_NAME, entries_of, write_document_keys
from carpool.disk.manifest import BaseFacts, write_manifest
from tests.disk.helpers import Content, entry_of, make_content, normalised, write_index

SAMPLES = Path(__file__).parent
EXPECTED_NAME = "expected.json"
VARIANTS = {
    "v2-float32": "float32",
    "v2-float16": "float16",
    "v2-int4": "float32",
    "v2-base": "float32",
}
BASE = BaseFacts(
    name="2026-11-21T10:00:07Z-7f3a91c2",
    predecessor="2026-11-20T10:00:07Z-00000001",
    position={0: 12, 1: 1 << 40},
    vectors={0: 13, 1: 0},
    topic="documents-id",
    vectors_topic="vectors-id",
)
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
    zero_clusters = range(len(content.centroids), len(content.clusters))
    rows = np.concatenate([content.clusters[cluster] for cluster in (*clusters, *zero_clusters)])
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
    row_counts = (3, 0, 60, 16, 16, 20)
    if variant == "v2-base":
        row_counts += (9,)
    content = make_content(row_counts=row_counts, dimension=60, corpus=7, seed=7)
    stored = content.vectors.astype(vector_dtype).astype(np.float32)
    content = replace(content, vectors=stored, centroids=content.centroids[:6])
    if variant == "v2-base":
        write_base(folder, content)
    else:
        write_index(folder, content, vector_dtype=vector_dtype)  # type: ignore[arg-type]
    queries = normalised(np.random.default_rng(8).standard_normal((QUERY_COUNT, 60)))
    expected = [search(content, query, 1 + number % 6) for number, query in enumerate(queries)]
    (folder / EXPECTED_NAME).write_bytes(
        msgspec.json.format(msgspec.json.encode(expected), indent=1) + b"\n"
    )


def write_base(folder: Path, content: Content) -> None:
    """Writes a saved base, with documents of two passages, and one of three."""
    manifest = write_index(folder, content, base=BASE)
    keys = [f"doc-{number}".encode() for number in range(len(content.vectors) // 2)]
    counts = np.full(len(keys), 2, np.uint32)
    counts[0] += len(content.vectors) % 2
    entries = entries_of(b"".join(map(digest_of, keys)), counts)
    write_document_keys(folder, [entries])
    files = manifest.files | {DOCUMENT_KEYS_NAME: entry_of(folder / DOCUMENT_KEYS_NAME)}
    write_manifest(folder, msgspec.structs.replace(manifest, files=files))


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in VARIANTS:
        sys.exit(f"usage: python -m tests.compat.make {'|'.join(VARIANTS)}")
    if (SAMPLES / sys.argv[1]).exists():
        sys.exit(
            f"{SAMPLES / sys.argv[1]} is there already; a sample is never made anew. Add a new "
            "variant instead"
        )
    make_sample(SAMPLES / sys.argv[1], sys.argv[1])

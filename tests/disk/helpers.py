"""Writes small indexes with the product's writers, and reads them whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from carpool.codes.int4 import Encoder, code_layout
from carpool.disk.centroids import centroids_fingerprint, write_centroids
from carpool.disk.checked_file import PAGE_BYTES
from carpool.disk.document_keys import DOCUMENT_KEYS_NAME, DocumentKeys
from carpool.disk.document_rows import documents_of_places, write_document_rows
from carpool.disk.documents import DocumentWriter, Passage
from carpool.disk.extent_table import write_extents
from carpool.disk.extents import plan_extents
from carpool.disk.files import file_crc32
from carpool.disk.index import OpenIndex, files_of, open_index
from carpool.disk.manifest import FORMAT, ZERO_CLUSTER, FileEntry, Manifest, write_manifest
from carpool.disk.pages import ClusterRows, PageLayout, VectorDtype, choose_layout, dense
from carpool.disk.rotation import random_rotation, write_rotation
from carpool.disk.segments import SegmentWriter, build_id_of, read_cluster
from indexer.write import digest_of_id, write_keys

Float32 = npt.NDArray[np.float32]
ROW_COUNTS = (3, 0, 100, 16, 16, 40, 1)


def open_files_under(folder: Path) -> list[str]:
    """Returns the files below `folder` that this process has open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(os.readlink(link))
    return [path for path in found if Path(path).is_relative_to(folder)]


@dataclass(frozen=True, kw_only=True)
class Content:
    """An index's content. vectors: (n, dim); clusters: rows of each; centroids: (nlist, dim).

    One cluster more than centroids: the last one is the zero cluster.
    """

    vectors: Float32
    clusters: tuple[npt.NDArray[np.int64], ...]
    centroids: Float32
    documents: tuple[Passage, ...]


def normalised(rows: npt.NDArray[np.floating]) -> Float32:
    """Rows of length one, float32."""
    scaled: Float32 = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return scaled


def make_content(
    *, corpus: int = 1, seed: int = 1, row_counts: Sequence[int] = ROW_COUNTS, dimension: int = 60
) -> Content:
    """Content that depends on `corpus`, clustered by `seed`; its sizes depend on neither.

    Files of two builds thus have the same lengths and differ in content only.
    """
    row_count = sum(row_counts)
    text = np.random.default_rng([corpus, 0])
    vectors = normalised(np.random.default_rng([corpus, 1]).standard_normal((row_count, dimension)))
    numbers = np.random.default_rng([corpus, 2, seed])
    order = numbers.permutation(row_count)
    clusters = tuple(np.sort(part) for part in np.split(order, np.cumsum(row_counts)[:-1]))
    documents = tuple(
        Passage(
            f"doc-{corpus}-{row:03d}",
            "" if row % 3 else f"Title {row:03d}",
            "".join(chr(97 + int(letter)) for letter in text.integers(0, 26, 20 + row % 40)),
        )
        for row in range(row_count)
    )
    return Content(
        vectors=vectors,
        clusters=clusters,
        centroids=normalised(numbers.standard_normal((len(row_counts), dimension))),
        documents=documents,
    )


def entry_of(path: Path) -> FileEntry:
    """The entry of a file in the manifest."""
    return FileEntry(size_bytes=path.stat().st_size, crc32=file_crc32(path))


def write_index(
    folder: Path,
    content: Content,
    *,
    vector_dtype: VectorDtype = "float32",
    page_bytes: int | None = 4096,
    segment_bytes_max: int = 24 << 10,
    has_codes: bool = True,
    **changes: object,
) -> Manifest:
    """Writes an index, by default with three segments, partial pages and an empty cluster.

    `page_bytes`: None chooses; `changes`: other fields of the
    manifest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    dimension = content.vectors.shape[1]
    counts = [len(rows) for rows in content.clusters]
    layout = (
        choose_layout(dimension, vector_dtype, counts)
        if page_bytes is None
        else PageLayout(dimension=dimension, vector_dtype=vector_dtype, page_bytes=page_bytes)
    )
    rotation = random_rotation(dimension, 0)
    encoder = None
    if has_codes:
        zeros = np.zeros((len(counts) - len(content.centroids), dimension), np.float32)
        centroids = np.concatenate([content.centroids, zeros])
        encoder = Encoder(code_layout(dimension), centroids, rotation)
    extents = plan_extents(layout, counts, segment_bytes_max=segment_bytes_max)
    build_id = build_id_of(
        repr(layout).encode(),
        content.centroids.tobytes(),
        content.vectors.tobytes(),
        *(c.tobytes() for c in content.clusters),
    )
    writer = SegmentWriter(
        folder, layout=layout, build_id=build_id, extents=extents, encoder=encoder
    )
    for extent in writer.remaining:
        writer.append(extent.cluster, content.vectors[content.clusters[extent.cluster]])
    segments = writer.close()
    write_extents(folder, extents)
    write_rotation(folder, rotation)
    order = np.concatenate(content.clusters)
    write_document_rows(folder, documents_of_places(layout, extents, order))
    write_centroids(folder, content.centroids)
    documents_build_id = build_id_of(repr(content.documents).encode())
    documents = DocumentWriter(folder, documents_build_id)
    for document in content.documents:
        documents.append(document)
    documents.close()
    write_keys(folder, b"".join(digest_of_id(document.doc_id) for document in content.documents))
    manifest = Manifest(
        format=FORMAT,
        requires=(ZERO_CLUSTER,) if len(counts) > len(content.centroids) else (),
        index_version=f"v-{build_id:016x}",
        dimension=dimension,
        metric="inner_product",
        nlist=len(content.centroids),
        codes=() if encoder is None else (encoder.layout,),
        vector_dtype=vector_dtype,
        page_bytes=layout.page_bytes,
        build_id=build_id,
        documents_build_id=documents_build_id,
        segment_count=extents[-1].segment + 1,
        embedding_model="model-fingerprint",
        embedding_model_name="made-up",
        centroids_fingerprint=centroids_fingerprint(content.centroids),
        row_count=len(content.vectors),
        nprobe_default=2,
    )
    names = [DOCUMENT_KEYS_NAME, *files_of(manifest)]
    files = {name: segments.get(name) or entry_of(folder / name) for name in names}
    manifest = msgspec.structs.replace(manifest, files=files, **changes)
    write_manifest(folder, manifest)
    return manifest


def read_one(index: OpenIndex, cluster: int) -> ClusterRows:
    """Reads and verifies one cluster of an index."""
    extent = index.extents[cluster]
    path = index.segment_paths[extent.segment]
    descriptor = os.open(path, os.O_RDONLY)
    try:
        pages = read_cluster(
            descriptor,
            extent,
            layout=index.layout,
            path=str(path),
            sums=index.row_sums[extent.segment],
        )
    finally:
        os.close(descriptor)
    return dense(pages)


def read_everything(folder: Path) -> tuple[list[ClusterRows], list[Passage]]:
    """Opens an index and reads every cluster and every document, as services do."""
    index = open_index(folder)
    try:
        clusters = [read_one(index, extent.cluster) for extent in index.extents]
        DocumentKeys.open(folder, index.manifest)
        if codes := index.open_codes():
            for file in codes.files:
                file.read(0, file.page_count * PAGE_BYTES)
        rows = [row for cluster in clusters for row in cluster.rows.tolist()]
        return clusters, index.documents.get(rows)
    finally:
        index.close()


def as_bytes(clusters: Sequence[ClusterRows], documents: Sequence[Passage]) -> list[object]:
    """What was read, in a form that can be compared."""
    return [*((c.cluster, c.vectors.tobytes(), c.rows.tobytes()) for c in clusters), *documents]

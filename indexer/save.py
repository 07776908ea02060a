"""Saves a base: the visible rows of an index, and fresh ones, become a new index (ADR 0031).

Centroids and the version of the index stay. Rows of the old index stay in their clusters; fresh
ones are assigned to these. Nothing is trained, and no text is embedded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from carpool.arrays import Bool, Float32, Int64, UInt32
from carpool.clock import Clock
from carpool.codes.int4 import Encoder, code_layout
from carpool.corpus.assign import assign
from carpool.disk.document_keys import (
    DocumentKeys,
    Entries,
    entries_of,
    merged,
    write_document_keys,
)
from carpool.disk.document_rows import documents_of_places
from carpool.disk.documents import DocumentWriter, Passage
from carpool.disk.extents import ClusterExtent, plan_extents
from carpool.disk.index import OpenIndex, open_index
from carpool.disk.manifest import (
    MANIFEST_NAME,
    ZERO_CLUSTER,
    BaseFacts,
    Manifest,
    write_manifest,
)
from carpool.disk.pages import ClusterPages, choose_layout, stored_vectors
from carpool.disk.rotation import read_rotation
from carpool.disk.segments import SegmentWriter, build_id_of
from carpool.errors import ConfigError
from indexer.progress import ProgressReport
from indexer.workspace import BUILD_NAME, Workspace
from indexer.write import index_version, write_tables

VECTORS_NAME = "fresh.f2"
CHUNK_ROWS = 1024
"""Rows that are assigned, or copied, at a time."""

Float16 = npt.NDArray[np.float16]


class FreshDocument(NamedTuple):
    """A document of the fold: the digest of its key, and its vectors, (passages, dim) float16."""

    key: bytes
    passages: tuple[Passage, ...]
    vectors: Float16


def save_base(
    base_dir: Path,
    out_dir: Path,
    facts: BaseFacts,
    hidden: Iterable[bytes],
    fresh: Iterable[FreshDocument],
    clock: Clock,
    progress: ProgressReport,
) -> Manifest:
    """Saves the index at `base_dir`, without `hidden` documents and with `fresh` ones. Blocks.

    `hidden`: digests of keys; a document of `fresh` hides the one of its key, too, and is there
    once. `facts`: the state that results; name and predecessor are filled in. What `progress`
    raises ends the save, between two documents or clusters. A save that was killed leaves no index,
    and the same call begins again. Memory: 25 bytes a passage, three times the largest cluster.
    Raises `ConfigError` where there is an index at `out_dir`, or none at `base_dir`, and
    `CorruptionError` where that is damaged.
    """
    if (out_dir / MANIFEST_NAME).exists() and not (out_dir / BUILD_NAME).is_dir():
        raise ConfigError(f"there is an index at {out_dir} already: save into another folder")
    started_us = clock.now_us()
    index = open_index(base_dir)
    try:
        keys = DocumentKeys.open(base_dir, index.manifest)
        with Workspace(out_dir) as workspace:
            workspace.refuse_unfinished()
            workspace.clear(keep_documents=False)
            try:
                save = _Save(index, keys, workspace, progress, _build_id(index, facts, started_us))
                manifest = save.run(facts, hidden, fresh, started_us)
            except BaseException:
                workspace.remove()
                raise
            workspace.publish()
    finally:
        index.close()
    return manifest


def _build_id(index: OpenIndex, facts: BaseFacts, started_us: int) -> int:
    """The time is in it: the order of fresh documents is not the same in every log."""
    of_base = (index.manifest.build_id, index.manifest.documents_build_id)
    return build_id_of(msgspec.json.encode((of_base, facts, started_us)))


class _Fresh(NamedTuple):
    """The fresh passages, numbered from 0: their table, and those of each cluster in order."""

    entries: Entries
    vectors: Float16
    by_cluster: tuple[Int64, ...]


@dataclass(frozen=True)
class _Save:
    """The steps of a save. Fresh passages have the first numbers, because they come first."""

    index: OpenIndex
    keys: DocumentKeys
    workspace: Workspace
    progress: ProgressReport
    build_id: int

    def run(
        self,
        facts: BaseFacts,
        hidden: Iterable[bytes],
        fresh: Iterable[FreshDocument],
        started_us: int,
    ) -> Manifest:
        """Writes the new index into the workspace; returns its manifest."""
        folder, before = self.workspace.finished, self.index.manifest
        kept = np.ones(before.row_count, np.bool_)
        documents = DocumentWriter(folder, self.build_id)
        try:
            added = self._take(fresh, documents, kept)
            for key in hidden:
                self._hide(key, kept)
            numbers = np.cumsum(kept, dtype=np.uint32)
            numbers += len(added.vectors)
            numbers -= 1
            self.progress.start("copying passages", int(kept.sum()))
            for number in np.flatnonzero(kept):
                documents.append(self.index.documents.document(int(number)))
                self.progress.advance(1)
            documents.close()
        except BaseException:
            documents.abandon()
            raise
        write_document_keys(folder, merged(self._kept_entries(kept, numbers), added.entries))
        made = self._clusters(added, kept, numbers)
        name = index_version(
            started_us, made.files, before.embedding_model, before.centroids_fingerprint
        )
        predecessor = None if before.base is None else before.base.name
        facts = msgspec.structs.replace(facts, name=name, predecessor=predecessor)
        made = msgspec.structs.replace(made, base=facts, row_count=documents.row_count)
        write_manifest(folder, made)
        return made

    def _hide(self, key: bytes, kept: Bool) -> None:
        passages = self.keys.passages_of(key)
        kept[passages.start : passages.stop] = False

    def _take(
        self, fresh: Iterable[FreshDocument], documents: DocumentWriter, kept: Bool
    ) -> _Fresh:
        """Stores fresh documents, and their vectors in a file; hides those that they replace."""
        digests, counts = bytearray(), list[int]()
        manifest, path = self.index.manifest, self.workspace.shards / VECTORS_NAME
        with path.open("wb") as file:
            for key, passages, vectors in fresh:
                if vectors.shape != (len(passages), manifest.dimension):
                    raise ValueError(f"{len(passages)} passages with vectors of {vectors.shape}")
                for passage in passages:
                    documents.append(passage)
                file.write(vectors.astype("<f2", copy=False).tobytes())
                digests += key
                counts.append(len(passages))
                self._hide(key, kept)
                self.progress.advance(0)  # how many come is not known
        shape = (sum(counts), manifest.dimension)
        stored = np.memmap(path, "<f2", "r", shape=shape) if counts else np.empty(shape, "<f2")
        clusters = np.empty(len(stored), np.int64)
        for start in range(0, len(stored), CHUNK_ROWS):
            chunk = stored[start : start + CHUNK_ROWS].astype(np.float32)
            clusters[start : start + CHUNK_ROWS] = assign(chunk, self.index.centroids)
        order = np.argsort(clusters, kind="stable")
        ends = np.searchsorted(clusters[order], np.arange(manifest.nlist + 1), side="right")
        entries = entries_of(digests, np.array(counts, np.uint32))
        return _Fresh(entries, stored, tuple(np.split(order, ends[:-1])))

    def _kept_entries(self, kept: Bool, numbers: UInt32) -> Iterator[Entries]:
        for part in self.keys.chunks():
            those = part[kept[part["first"]]]
            those["first"] = numbers[those["first"]]
            yield those

    def _clusters(self, added: _Fresh, kept: Bool, numbers: UInt32) -> Manifest:
        """Writes clusters, codes and tables; returns the old manifest with what is in these."""
        index, before = self.index, self.index.manifest
        old = [self._documents_of(extent) for extent in index.extents]
        old += [numbers[:0]] * (before.nlist + 1 - len(old))  # there was no zero cluster
        counts = [int(kept[o].sum()) + len(a) for o, a in zip(old, added.by_cluster, strict=True)]
        zero = (ZERO_CLUSTER,) if counts[-1] else ()
        counts = counts[: before.nlist + len(zero)]
        layout = choose_layout(before.dimension, before.vector_dtype, counts)
        codes, rotation = code_layout(before.dimension), read_rotation(index.dir, before)
        zeros = np.zeros((len(zero), before.dimension), np.float32)
        writer = SegmentWriter(
            self.workspace.finished,
            layout=layout,
            build_id=self.build_id,
            extents=plan_extents(layout, counts),
            encoder=Encoder(codes, np.concatenate([index.centroids, zeros]), rotation),
        )
        extents, rows = writer.remaining, list[UInt32]()
        self.progress.start("writing clusters (rows)", sum(counts))
        pages = chain.from_iterable(map(index.clusters_of, range(before.segment_count)))
        try:
            for extent in extents:
                cluster = extent.cluster
                fresh = added.by_cluster[cluster]
                are_kept = kept[old[cluster]]
                vectors = np.empty((extent.row_count, before.dimension), np.float32)
                _copy(next(pages, None), are_kept, vectors)
                vectors[len(vectors) - len(fresh) :] = added.vectors[fresh]
                writer.append(cluster, vectors)
                rows += [numbers[old[cluster][are_kept]], fresh.astype(np.uint32)]
                self.progress.advance(extent.row_count)
        except BaseException:
            writer.abandon()
            raise
        places = documents_of_places(layout, extents, np.concatenate(rows))
        files = write_tables(
            self.workspace.finished, index.centroids, rotation, extents, places, writer.close()
        )
        return msgspec.structs.replace(
            before,
            requires=zero,
            codes=(codes,),
            page_bytes=layout.page_bytes,
            segment_count=extents[-1].segment + 1,
            build_id=self.build_id,
            documents_build_id=self.build_id,
            files=files,
        )

    def _documents_of(self, extent: ClusterExtent) -> UInt32:
        """Returns the documents of the rows of a cluster, in their order."""
        of_places = self.index.documents.table.of_places
        assert of_places is not None
        first = extent.first_page * self.index.layout.rows_per_page
        return of_places[first : first + extent.row_count]


def _copy(cluster: ClusterPages | None, are_kept: Bool, vectors: Float32) -> None:
    """Copies the rows of a cluster that are kept to the beginning of `vectors`: (n, dim)."""
    done = 0
    for start in range(0, len(are_kept), CHUNK_ROWS):
        assert cluster is not None
        those = slice(start, start + CHUNK_ROWS)
        rows = stored_vectors(cluster)[those][are_kept[those]]
        vectors[done : done + len(rows)] = rows
        done += len(rows)

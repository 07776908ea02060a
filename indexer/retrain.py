"""Makes an index with new centroids from the rows and documents of a base. Nothing is embedded."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np

from carpool.clock import Clock
from carpool.disk.document_keys import DOCUMENT_KEYS_NAME
from carpool.disk.documents import DOCUMENTS_NAME, OFFSETS_NAME
from carpool.disk.index import OpenIndex, open_index
from carpool.disk.manifest import BaseFacts, Manifest, write_manifest
from carpool.disk.pages import stored_vectors
from indexer.clustering import cluster_and_write
from indexer.plan.state import (
    BuildIdentity,
    BuildState,
    ClusteringIdentity,
    CorpusIdentity,
    LayoutIdentity,
    VectorsIdentity,
)
from indexer.progress import ProgressReport
from indexer.settings import IndexerSettings
from indexer.vectors import RowFile, Vectors
from indexer.workspace import Workspace


def retrain(
    base_dir: Path,
    out_dir: Path,
    settings: IndexerSettings,
    clock: Clock,
    progress: ProgressReport,
) -> Manifest:
    """Returns the manifest of an index at `out_dir` with the documents of a base. Blocks.

    Its clusters are those of a build by default, and its version is new. Takes the size of the
    vectors on disk twice. Raises `CorruptionError` where the base is damaged.
    """
    index = open_index(base_dir)
    try:
        with Workspace(out_dir) as workspace:
            workspace.refuse_unfinished()
            workspace.clear(keep_documents=False)
            for name in (DOCUMENTS_NAME, OFFSETS_NAME, DOCUMENT_KEYS_NAME):
                shutil.copyfile(base_dir / name, workspace.finished / name)
            vectors = _vectors(index, workspace.shards / "rows.f32")
            identity = _identity(index.manifest, settings)
            state = BuildState(started_us=clock.now_us(), identity=identity)
            made = cluster_and_write(workspace, settings, state, vectors, progress)
            facts = index.manifest.base or BaseFacts(position={}, vectors={})
            made = msgspec.structs.replace(
                made,
                documents_build_id=index.manifest.documents_build_id,
                base=msgspec.structs.replace(facts, name=made.index_version),
            )
            write_manifest(workspace.finished, made)
            workspace.publish()
    finally:
        index.close()
    return made


def _vectors(index: OpenIndex, path: Path) -> Vectors:
    """Writes the vectors of a base in the order of its documents, and returns them."""
    count, dimension = index.manifest.row_count, index.manifest.dimension
    rows = np.memmap(path, "<f4", "w+", shape=(count, dimension))
    of_places = index.documents.table.of_places
    assert of_places is not None, "an index on disk says which document a row is of"
    for segment in range(index.manifest.segment_count):
        for cluster in index.clusters_of(segment):
            first = cluster.first_page * index.layout.rows_per_page
            rows[of_places[first : first + cluster.row_count]] = stored_vectors(cluster)
    rows.flush()
    return Vectors([RowFile(path, 0, count)], dimension=dimension)


def _identity(before: Manifest, settings: IndexerSettings) -> BuildIdentity:
    return BuildIdentity(
        corpus=CorpusIdentity(
            size_bytes=0, sha256=before.index_version, passage_bytes_max=settings.passage_bytes_max
        ),
        vectors=VectorsIdentity(
            embedding_model=before.embedding_model,
            embedding_model_name=before.embedding_model_name,
        ),
        clustering=ClusteringIdentity(train_bytes_max=settings.memory_bytes),
        layout=LayoutIdentity(vector_dtype=before.vector_dtype),
    )

"""Builds an index without passages, to which documents are added later."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from carpool.clock import Clock
from carpool.disk.documents import DocumentWriter
from carpool.disk.manifest import Manifest
from carpool.embedding.loader import load_embedder
from indexer.plan.state import (
    BuildIdentity,
    ClusteringIdentity,
    CorpusIdentity,
    LayoutIdentity,
    VectorsIdentity,
)
from indexer.progress import SilentProgress
from indexer.settings import IndexerConfig
from indexer.vectors import Vectors
from indexer.workspace import Workspace, refuse_existing
from indexer.write import (
    Clusters,
    documents_build_id,
    finish,
    plan_segments,
    write_clusters,
    write_keys,
)


def build_empty(
    index_dir: Path, config: IndexerConfig, clock: Clock, *, force: bool = False
) -> Manifest:
    """Builds an index of one cluster, whose centroid is zero, and without rows; with codes. Blocks.

    It loads the model, which says the dimension. `force` replaces an index at `index_dir`. Raises
    `ConfigError` where there is an index, or an interrupted build of one.
    """
    refuse_existing(index_dir, force=force)
    model = load_embedder(config.embedding, are_passages=True)
    started_us = clock.now_us()
    with Workspace(index_dir) as workspace:
        workspace.refuse_unfinished()
        workspace.clear(keep_documents=False)
        identity = BuildIdentity(
            corpus=CorpusIdentity(
                size_bytes=0,
                sha256=hashlib.sha256(b"").hexdigest(),
                passage_bytes_max=config.indexer.passage_bytes_max,
            ),
            vectors=VectorsIdentity(
                embedding_model=model.fingerprint, embedding_model_name=config.embedding.model
            ),
            clustering=ClusteringIdentity(train_bytes_max=config.indexer.memory_bytes, nlist=1),
            layout=LayoutIdentity(vector_dtype=config.indexer.vector_dtype),
        )
        folder = workspace.finished
        DocumentWriter(folder, documents_build_id(identity.corpus)).close()
        write_keys(folder, b"")
        centroids = np.zeros((1, model.dimension), np.float32)
        plan = plan_segments(identity, Clusters(centroids, np.empty(0, np.int32), ""))
        vectors = Vectors([], dimension=model.dimension)
        memory_bytes = config.indexer.memory_bytes
        segments = write_clusters(folder, vectors, plan, memory_bytes, SilentProgress())
        manifest = finish(folder, plan, started_us, segments)
        workspace.publish()
    return manifest

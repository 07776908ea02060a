"""The indexes of a run, built once and used again: of the evaluation data, or of given texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.data.evaluation import CORPUS, EvaluationData, read_passages, read_vectors
from bench.data.exact import MemorySearch
from carpool.clock import SystemClock
from carpool.disk.centroids import read_centroids
from carpool.disk.extents import segment_name
from carpool.disk.manifest import MANIFEST_NAME, Manifest, read_manifest
from carpool.embedding import EmbeddingSettings
from carpool.embedding.loader import fingerprint_of, load_embedder
from indexer.build import BuildRequest, build_index
from indexer.progress import SilentProgress
from indexer.settings import IndexerConfig, IndexerSettings

FACTS = ("index_version", "row_count", "dimension", "nlist", "nprobe_default", "embedding_model")


class BenchIndex(msgspec.Struct, frozen=True, kw_only=True):
    """An index that a run uses."""

    dir: Path
    manifest: Manifest

    @property
    def segment_bytes(self) -> int:
        """Bytes of all clusters on disk."""
        return sum(
            self.manifest.file(segment_name(number)).size_bytes
            for number in range(self.manifest.segment_count)
        )

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the index for a report."""
        facts = {name: getattr(self.manifest, name) for name in FACTS}
        return {**facts, "segment_bytes": self.segment_bytes}


def corpus_index(
    data: EvaluationData, *, folder: Path, nlist: int, seed: int, embedding: EmbeddingSettings
) -> BenchIndex:
    """Returns the index of the corpus in `folder`, built from precomputed vectors if missing.

    One that is there may be of other passages.
    """
    index_dir = folder / f"index-{nlist}-{seed}-{fingerprint_of(embedding)}"
    if (index_dir / MANIFEST_NAME).exists():
        return BenchIndex(dir=index_dir, manifest=read_manifest(index_dir))
    vectors = data.vectors_path(CORPUS)
    config = IndexerConfig(embedding=embedding)
    return _build(data.corpus_path, vectors, index_dir, nlist=nlist, seed=seed, config=config)


def index_of_texts(texts: Sequence[str], *, index_dir: Path, nlist: int, model: str) -> BenchIndex:
    """Returns a new index of `texts` with codes, embedded with `model`."""
    index_dir.parent.mkdir(parents=True, exist_ok=True)
    corpus = index_dir.with_name(index_dir.name + "-corpus.jsonl")
    rows = (
        {"id": f"passage-{number}", "title": f"Passage {number}", "text": text}
        for number, text in enumerate(texts)
    )
    corpus.write_bytes(b"\n".join(map(msgspec.json.encode, rows)) + b"\n")
    embedding = EmbeddingSettings(model=model)
    config = IndexerConfig(embedding=embedding, indexer=IndexerSettings(code_rows_min=1))
    vectors = index_dir.with_name(index_dir.name + "-vectors.npy")
    np.save(vectors, load_embedder(embedding, are_passages=True).encode(texts))
    return _build(corpus, vectors, index_dir, nlist=nlist, seed=0, config=config)


def memory_search(data: EvaluationData, index: BenchIndex) -> MemorySearch:
    """Returns FAISS over the vectors and centroids of the index."""
    ids = [passage.doc_id for passage in read_passages(data.corpus_path)]
    vectors = read_vectors(data.vectors_path(CORPUS))
    return MemorySearch(ids, vectors, read_centroids(index.dir, index.manifest))


def _build(
    corpus: Path, vectors: Path, index_dir: Path, *, nlist: int, seed: int, config: IndexerConfig
) -> BenchIndex:
    request = BuildRequest(
        corpus=corpus,
        index_dir=index_dir,
        nlist=nlist,
        seed=seed,
        strict=True,
        force=True,
        restart=True,
        vectors=vectors,
        fingerprint=fingerprint_of(config.embedding),
    )
    report = build_index(request, config, SystemClock(), SilentProgress())
    return BenchIndex(dir=index_dir, manifest=report.manifest)

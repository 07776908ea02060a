"""The indexes of a run, built once and used again: of the evaluation data, or of given texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bench.data.evaluation import CORPUS, EvaluationData
from carpool.clock import SystemClock
from carpool.disk.extents import segment_name
from carpool.disk.manifest import MANIFEST_NAME, Manifest, read_manifest
from carpool.embedding import EmbeddingSettings
from carpool.embedding.loader import fingerprint_of
from indexer.build import BuildRequest, build_index
from indexer.progress import SilentProgress
from indexer.settings import IndexerConfig, IndexerSettings

WITHOUT_CODES = 1 << 40
"""More passages than an index has."""
FACTS = ("index_version", "row_count", "dimension", "nlist", "nprobe_default", "embedding_model")


class BenchIndex(msgspec.Struct, frozen=True, kw_only=True):
    """An index that a run uses."""

    dir: Path
    manifest: Manifest

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the index for a report; `segment_bytes`: of all clusters on disk."""
        segments = map(segment_name, range(self.manifest.segment_count))
        size_bytes = sum(self.manifest.file(name).size_bytes for name in segments)
        return {name: getattr(self.manifest, name) for name in FACTS} | {
            "segment_bytes": size_bytes
        }


def corpus_index(
    data: EvaluationData, *, folder: Path, nlist: int, seed: int, embedding: EmbeddingSettings
) -> BenchIndex:
    """Returns the index of the corpus in `folder`, built from precomputed vectors if missing.

    One that is there may be of other passages. It has no codes: every search is exact, and its ids
    are compared with those of FAISS.
    """
    index_dir = folder / f"index-{nlist}-{seed}-{fingerprint_of(embedding)}"
    if (index_dir / MANIFEST_NAME).exists():
        return BenchIndex(dir=index_dir, manifest=read_manifest(index_dir))
    exact = IndexerSettings(code_rows_min=WITHOUT_CODES)
    config = IndexerConfig(embedding=embedding, indexer=exact)
    vectors = data.vectors_path(CORPUS)
    return built(data.corpus_path, index_dir, config, vectors=vectors, nlist=nlist, seed=seed)


def built(corpus: Path, index_dir: Path, config: IndexerConfig, **wishes: Any) -> BenchIndex:
    """Returns a new index. `wishes`: further fields of `BuildRequest`."""
    request = BuildRequest(
        corpus=corpus, index_dir=index_dir, strict=True, force=True, restart=True, **wishes
    )
    report = build_index(request, config, SystemClock(), SilentProgress())
    return BenchIndex(dir=index_dir, manifest=report.manifest)

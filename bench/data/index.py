"""The indexes of a run, built once and used again: of the evaluation data, or of given texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from bench.data.evaluation import CORPUS, EvaluationData, Float32, read_passages, read_vectors
from bench.data.exact import MemorySearch
from carpool.clock import SystemClock
from carpool.disk.centroids import read_centroids
from carpool.disk.extents import segment_name
from carpool.disk.manifest import MANIFEST_NAME, Manifest, read_manifest
from carpool.embedding import EmbeddingSettings, fingerprint_of, load_embedder
from carpool.errors import ConfigError
from indexer.build import BuildRequest, build_index
from indexer.progress import SilentProgress
from indexer.settings import IndexerConfig, IndexerSettings

ROUND_NPROBES = (1, 2, 5, 10, 15, 20, 30, 40, 50)


class IndexFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The index that was searched."""

    index_version: str
    row_count: int
    dimension: int
    nlist: int
    nprobe_default: int
    segment_bytes: int
    embedding_model: str


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
    def facts(self) -> IndexFacts:
        """The facts of the index for a report."""
        manifest = self.manifest
        return IndexFacts(
            index_version=manifest.index_version,
            row_count=manifest.row_count,
            dimension=manifest.dimension,
            nlist=manifest.nlist,
            nprobe_default=manifest.nprobe_default,
            segment_bytes=self.segment_bytes,
            embedding_model=manifest.embedding_model,
        )


def corpus_index(
    data: EvaluationData,
    *,
    index_dir: Path,
    nlist: int,
    seed: int,
    embedding: EmbeddingSettings,
    note: Callable[[str], None],
    may_be_other: bool = False,
) -> BenchIndex:
    """Returns the index of the corpus in `index_dir`, built from precomputed vectors if missing.

    `may_be_other`: an index of other passages that is there is taken, if it is of the same model.
    Raises `ConfigError` where the index that is there has another model, number of clusters or
    number of passages.
    """
    fingerprint = fingerprint_of(embedding)
    if (index_dir / MANIFEST_NAME).exists():
        found = BenchIndex(dir=index_dir, manifest=read_manifest(index_dir))
        rows = len(read_passages(data.corpus_path))
        wanted = {"embedding_model": fingerprint, "nlist": nlist, "row_count": rows}
        if may_be_other:
            wanted = {"embedding_model": fingerprint}
        wrong = [
            f"{name} is {getattr(found.manifest, name)}, not {value}"
            for name, value in wanted.items()
            if getattr(found.manifest, name) != value
        ]
        if wrong:
            raise ConfigError(
                f"the index at {index_dir} is another one: {'; '.join(wrong)}. Name another --index"
            )
        note(f"index: {index_dir} is there already")
        return found
    note(f"index: building {index_dir} from precomputed vectors")
    index_dir.parent.mkdir(parents=True, exist_ok=True)
    return _build(
        data.corpus_path,
        read_vectors(data.vectors_path(CORPUS)),
        index_dir,
        nlist=nlist,
        seed=seed,
        embedding=embedding,
    )


def index_of_texts(texts: Sequence[str], *, index_dir: Path, nlist: int, model: str) -> BenchIndex:
    """Returns an index of `texts` with codes, embedded with `model`; `index_dir`'s if it fits."""
    embedding = EmbeddingSettings(model=model)
    if (index_dir / MANIFEST_NAME).exists():
        manifest = read_manifest(index_dir)
        is_as_large = (manifest.row_count, manifest.nlist) == (len(texts), nlist)
        is_of_model = manifest.embedding_model == fingerprint_of(embedding)
        if is_as_large and is_of_model and manifest.codes:
            return BenchIndex(dir=index_dir, manifest=manifest)
    index_dir.parent.mkdir(parents=True, exist_ok=True)
    corpus = index_dir.with_name(index_dir.name + "-corpus.jsonl")
    rows = (
        {"id": f"passage-{number}", "title": f"Passage {number}", "text": text}
        for number, text in enumerate(texts)
    )
    corpus.write_bytes(b"\n".join(map(msgspec.json.encode, rows)) + b"\n")
    vectors = load_embedder(embedding).encode(texts)
    return _build(
        corpus, vectors, index_dir, nlist=nlist, seed=0, embedding=embedding, has_codes=True
    )


def memory_search(data: EvaluationData, index: BenchIndex) -> MemorySearch:
    """Returns FAISS over the vectors and centroids of the index."""
    ids = [str(passage.id) for passage in read_passages(data.corpus_path)]
    vectors = read_vectors(data.vectors_path(CORPUS))
    return MemorySearch(ids, vectors, read_centroids(index.dir, index.manifest))


def _build(
    corpus: Path,
    vectors: Float32,
    index_dir: Path,
    *,
    nlist: int,
    seed: int,
    embedding: EmbeddingSettings,
    has_codes: bool = False,
) -> BenchIndex:
    vectors_path = index_dir.with_name(index_dir.name + "-vectors.npy")
    np.save(vectors_path, vectors)
    config = IndexerConfig(embedding=embedding)
    if has_codes:
        config = IndexerConfig(embedding=embedding, indexer=IndexerSettings(code_rows_min=1))
    request = BuildRequest(
        corpus=corpus,
        index_dir=index_dir,
        nlist=nlist,
        seed=seed,
        strict=True,
        force=True,
        restart=True,
        vectors=vectors_path,
        fingerprint=fingerprint_of(embedding),
    )
    try:
        report = build_index(request, config, SystemClock(), SilentProgress())
    finally:
        vectors_path.unlink()
    return BenchIndex(dir=index_dir, manifest=report.manifest)


def nprobes_to_try(nlist: int, nprobe_default: int) -> list[int]:
    """Returns the nprobes of a table: round ones, the default, and nlist (exact)."""
    return sorted({n for n in ROUND_NPROBES if n <= nlist // 2} | {nprobe_default, nlist})

"""`carpool bench data`: grows a large set of vectors out of the real passages, or of sentences.

    document = normalise(passage + step (towards - away))

`towards` and `away` are two passages near the passage: their difference has the direction and the
length in which real texts of a subject differ; noise has not. `step` is random, around the spread.

*Invariant:* a grown set is asked real questions only, never documents with noise on them.
*Invariant:* the same data, rows and seed give the same vectors.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from bench.core.run import BenchRun
from bench.data.evaluation import (
    CORPUS,
    EvaluationData,
    find_data,
    new_folder,
    read_passages,
    read_vectors,
    real_questions,
)
from bench.data.exact import exact_answers
from bench.data.options import GrowOptions
from carpool.arrays import Float32, Int64
from carpool.disk.centroids import probe
from carpool.embedding import EmbeddingSettings
from carpool.embedding.loader import load_embedder
from carpool.errors import ConfigError
from carpool.sentences import sentence_spans
from indexer.clustering import assign_rows, train_centroids
from indexer.kmeans import faiss
from indexer.plan.defaults import default_nprobe
from indexer.plan.state import ClusteringIdentity
from indexer.progress import SilentProgress
from indexer.vectors import Vectors, open_precomputed

NEIGHBOURS = 64
"""Passages near a passage: of its own subject among 16,000, and rarely drawn twice."""
STEP = (0.5, 1.5)
"""How far a document goes from its passage, as a multiple of the spread."""
CHUNK_ROWS = 16_384
"""Rows drawn from one generator. Another number gives other documents."""
SPREADS = ((16_000, 0.6), (200_000, 1.1), (1_000_000, 1.7), (5_400_000, 2.4))
"""The usual spread by rows (interpolated by log): it fits Wikipedia's introductions."""
JUDGES_PART = 3
"""One question in three judges the set, and is not written to its questions."""
NLIST, NPROBE, TOP_K = 100, 10, 10
"""What is compared: the share of the ten best rows of a question in the clusters that it probes."""
TOLERANCE = 0.02
SENTENCE_CHARS_MIN = 60
"""A shorter sentence says too little to be found."""

Int32 = npt.NDArray[np.int32]


def run(options: GrowOptions) -> bool:
    """Grows a set and judges it: does it behave as the real one?"""
    if options.sentences:
        return embed_sentences(options)
    run = BenchRun("data", options)
    data, out = find_data(options.data), options.out
    real = data.vectors_path(CORPUS)
    passages, titles = (
        read_vectors(real),
        [each.title for each in read_passages(data.corpus_path)],
    )
    if len(passages) != len(titles):
        raise ConfigError(f"{data.folder} has {len(titles)} passages, {len(passages)} vectors")
    questions = real_questions(data, options.seed)
    count = len(questions) // JUDGES_PART
    judges = questions[-count:]
    spread = options.spread or usual_spread(options.rows)
    run.note(f"growing {options.rows:,} rows of spread {spread:.3f}")
    with new_folder(out):
        grow(passages, titles, out, rows=options.rows, seed=options.seed, spread=spread)
        np.save(out / "queries.npy", questions[:-count], allow_pickle=False)
    run.note(f"searching both sets for {len(judges):,} questions, to compare them")
    recalls = {
        name: recall_ceiling(open_precomputed(path), judges, options.seed)
        for name, path in (("real", real), ("grown", out / "vectors.npy"))
    }
    difference = abs(recalls["grown"] - recalls["real"])
    return run.finish(
        {"data": {"recall of the nearest clusters": recalls}},
        promises={
            f"recall@{TOP_K} at nlist {NLIST}, nprobe {NPROBE} within {TOLERANCE} of the real "
            "set's (a larger --spread lowers it)": difference <= TOLERANCE
        },
        results={"spread": spread, "recall": recalls},
    )


def embed_sentences(options: GrowOptions) -> bool:
    """Writes a real set: at most `options.rows` of the passages and their sentences."""
    run, data, out = BenchRun("data", options), find_data(options.data), options.out
    passages, vectors = (read_passages(data.corpus_path), read_vectors(data.vectors_path(CORPUS)))
    documents = [{"title": each.title, "text": each.text} for each in passages]
    for each in passages:
        spans = list(sentence_spans(each.text))
        texts = [each.text[start:end] for start, end in spans if end - start >= SENTENCE_CHARS_MIN]
        documents += [{"title": each.title, "text": text} for text in texts if len(spans) > 1]
    documents = documents[: max(options.rows, len(passages))]
    sentences = [f"{each['title']}. {each['text']}" for each in documents[len(passages) :]]
    run.note(f"embedding {len(sentences):,} sentences")
    embedded = load_embedder(EmbeddingSettings(), are_passages=True).encode(sentences)
    with new_folder(out):
        np.save(out / "vectors.npy", np.concatenate([vectors, embedded]).astype(np.float16))
        np.save(out / "queries.npy", real_questions(data, options.seed))
        lines = [{"id": f"row-{row}", **each} for row, each in enumerate(documents)]
        (out / "corpus.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    found = {"rows": len(documents)}
    return run.finish({"data": {"set": found}}, promises={}, results=found)


def usual_spread(rows: int) -> float:
    """Returns the usual spread of a set of so many rows."""
    sizes, spreads = zip(*SPREADS, strict=True)
    return float(np.interp(np.log(rows), np.log(sizes), spreads))


def grow(
    passages: Float32, titles: list[str], out: Path, *, rows: int, seed: int, spread: float
) -> None:
    """Writes vectors.npy, (rows, dim) float16, and corpus.jsonl, a line for each row. Blocks."""
    nearest = nearest_passages(passages, min(NEIGHBOURS, len(passages) - 1))
    count = nearest.shape[1]
    vectors: npt.NDArray[np.float16] = np.lib.format.open_memmap(  # type: ignore[no-untyped-call]
        out / "vectors.npy", mode="w+", dtype=np.float16, shape=(rows, passages.shape[1])
    )
    with (out / "corpus.jsonl").open("wb") as corpus:
        for start in range(0, rows, CHUNK_ROWS):
            random = np.random.default_rng((seed, start // CHUNK_ROWS))
            numbers = np.arange(start, min(start + CHUNK_ROWS, rows))
            of = numbers % len(passages)
            first = random.integers(0, count, len(of))
            second = (first + random.integers(1, count, len(of))) % count  # never the first
            step = (random.uniform(*STEP, len(of)) * spread).astype(np.float32)[:, None]
            mixed = passages[nearest[of, first]] - passages[nearest[of, second]]
            mixed = passages[of] + step * mixed
            vectors[numbers] = mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
            for row, passage in zip(numbers.tolist(), of.tolist(), strict=True):
                text = f"Grown from {titles[passage]!r}."
                line = {"id": f"grown-{row}", "title": titles[passage], "text": text}
                corpus.write(msgspec.json.encode(line) + b"\n")


def nearest_passages(passages: Float32, count: int) -> Int64:
    """Returns (rows, count) int64: the nearest other rows of each row. Blocks."""
    if count < 2:
        raise ConfigError(f"{len(passages)} passages are too few: each needs two others near it")
    _, nearest = faiss.knn(passages, passages, count + 1, metric=faiss.METRIC_INNER_PRODUCT)
    others = nearest != np.arange(len(passages))[:, None]
    others[others.all(axis=1), -1] = False  # its equals are nearer than the row itself
    found: Int64 = nearest[others].reshape(len(passages), count)
    return found


def cluster(vectors: Vectors, *, nlist: int, seed: int) -> tuple[Float32, Int32]:
    """Returns centroids, (nlist, dim) float32, and the cluster of each row. Blocks."""
    identity = ClusteringIdentity(nlist=nlist, seed=seed, train_bytes_max=1 << 30)
    centroids = train_centroids(vectors, nlist, identity, SilentProgress())
    return centroids, assign_rows(vectors, centroids, lambda _: None).clusters


class Collection(NamedTuple):
    """Passages in clusters: the cluster of each, and the rows of each cluster."""

    corpus: Float32
    centroids: Float32
    clusters: Int64
    rows_of: list[Int64]
    nprobe: int

    def best(self, vectors: Float32, count: int) -> Int64:
        """Returns the exact best rows of each vector among all rows."""
        return np.argsort(-(vectors @ self.corpus.T), axis=1, kind="stable")[:, :count]

    def probed(self, vectors: Float32) -> Int64:
        """Returns the clusters that are probed for each vector, nearest first."""
        return probe(self.centroids, vectors, self.nprobe).astype(np.int64)


def collection_of(data: EvaluationData, nlist: int, nprobe: int | None, seed: int) -> Collection:
    """Returns the passages in `nlist` clusters. `nprobe`: None: the default."""
    path = data.vectors_path(CORPUS)
    corpus = read_vectors(path)
    centroids, clusters = cluster(open_precomputed(path), nlist=nlist, seed=seed)
    rows_of = [np.flatnonzero(clusters == number) for number in range(nlist)]
    probes = nprobe or default_nprobe(len(corpus), nlist)
    return Collection(corpus, centroids, clusters.astype(np.int64), rows_of, probes)


def recall_ceiling(vectors: Vectors, questions: Float32, seed: int) -> float:
    """Returns the share of each question's best rows that are in the clusters that it probes."""
    centroids, clusters = cluster(vectors, nlist=NLIST, seed=seed)
    best = exact_answers(vectors.chunks(), questions, TOP_K).rows[:, :TOP_K]
    probed = probe(centroids, questions, NPROBE)
    inside = clusters[best][:, :, None] == probed[:, None, :]
    return float(inside.any(axis=2).mean())

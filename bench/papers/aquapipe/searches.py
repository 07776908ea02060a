"""What searches have found after each cluster, the nearest first: real questions and passages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bench.data.evaluation import CORPUS, TRAFFIC, EvaluationData, read_vectors
from bench.data.grown import cluster
from bench.simulator.warm_ups import Found
from carpool.disk.centroids import probe
from indexer.plan.defaults import default_nprobe
from indexer.vectors import open_precomputed

PASSAGES, QUESTIONS = 3, 400


def searches(
    data: EvaluationData, *, nlist: int, seed: int, questions: int = QUESTIONS
) -> Iterator[tuple[Found, ...]]:
    """Yields what each of some questions has found. A search takes the time of its rows."""
    path = data.vectors_path(CORPUS)
    corpus = read_vectors(path)
    vectors = read_vectors(data.vectors_path(TRAFFIC))
    chosen = np.random.default_rng(seed).permutation(len(vectors))[:questions]
    centroids, clusters = cluster(
        open_precomputed(data.vectors_path(CORPUS)), nlist=nlist, seed=seed
    )
    rows_of = [np.flatnonzero(clusters == number) for number in range(nlist)]
    for vector in vectors[chosen]:
        probed = probe(centroids, vector[None], default_nprobe(len(corpus), nlist))[0].tolist()
        total = sum(len(rows_of[number]) for number in probed)
        rows = np.array([], dtype=np.int64)
        done, found = 0, []
        for number in probed:
            rows = np.concatenate([rows, rows_of[number]])
            scores = corpus[rows] @ vector
            best = np.lexsort((rows, -scores))[:PASSAGES]
            rows, scores = rows[best], scores[best]
            done += len(rows_of[number])
            passages = tuple(map(str, rows.tolist()))
            found.append(Found(passages=passages, scores=tuple(scores.tolist()), at=done / total))
        yield tuple(found)

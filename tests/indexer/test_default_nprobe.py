"""The default nprobe finds what exact search finds, within a point, on claims whose evidence page is known."""

import gzip
import json
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from carpool.disk.centroids import probe
from carpool.disk.index import OpenIndex, open_index
from indexer.settings import IndexerConfig, IndexerSettings
from tests.indexer.helpers import build

TOP = 5
CONFIG = IndexerConfig(indexer=IndexerSettings(profile_reads=0))


def cluster_of_rows(index: OpenIndex, vectors: np.ndarray) -> np.ndarray:
    return probe(index.centroids, vectors, 1)[:, 0]


def found_share(ranked: np.ndarray, ids: list[str], query_ids: list[str], evidence: dict[str, set[str]]) -> float:
    """Percent of the queries with an evidence page among their ranked rows."""
    hits = [any(ids[row] in evidence[query] for row in rows) for query, rows in zip(query_ids, ranked, strict=True)]
    return 100 * sum(hits) / len(hits)


@pytest.mark.data
@pytest.mark.parametrize("nlist", [100, 400])
def test_evidence_among_the_first_five_is_within_a_point_of_exact_search(tmp_path: Path, nlist: int) -> None:
    data = Path(os.environ["CARPOOL_DATA"])
    vectors_path = data / "embeddings" / "wikipedia-16k.npy"
    manifest = build(
        data / "wikipedia-16k.jsonl.gz",
        tmp_path / "index",
        CONFIG,
        nlist=nlist,
        vectors=vectors_path,
        fingerprint="feed",
    ).manifest
    assert (manifest.row_count, manifest.nlist) == (16_152, nlist)
    index = open_index(tmp_path / "index")
    ids = [document.doc_id for document in index.documents.get(range(manifest.row_count))]
    with gzip.open(data / "claims-fever.jsonl.gz", "rt") as file:
        query_ids = [json.loads(line)["id"] for line in file]
    evidence = defaultdict(set)
    for line in (data / "qrels-fever.tsv").read_text().splitlines():
        query_id, page = line.split("\t")[:2]
        evidence[query_id].add(page)
    vectors = np.load(vectors_path, allow_pickle=False).astype(np.float32)
    queries = np.load(data / "embeddings" / "claims-fever.npy", allow_pickle=False).astype(np.float32)
    scores = queries @ vectors.T
    exact = found_share(np.argsort(-scores, axis=1, kind="stable")[:, :TOP], ids, query_ids, evidence)
    assert exact == pytest.approx(91.8, abs=0.05)
    clusters = cluster_of_rows(index, vectors)
    shares = {}
    for nprobe in (5, 10, 16, 20, 24, 32, manifest.nprobe_default):
        is_probed = np.zeros((len(queries), nlist), dtype=bool)
        np.put_along_axis(is_probed, probe(index.centroids, queries, nprobe).astype(np.int64), True, axis=1)
        ranked = np.argsort(-np.where(is_probed[:, clusters], scores, -2), axis=1, kind="stable")[:, :TOP]
        shares[nprobe] = round(found_share(ranked, ids, query_ids, evidence), 1)
    index.close()
    print(f"exact {exact:.1f} %, nlist {nlist}: {shares}")
    assert shares[manifest.nprobe_default] >= exact - 1, shares
    assert shares[5] < exact - 1, shares

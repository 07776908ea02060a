"""The default nprobe finds what an exact search finds, within a point, on claims whose evidence
page is known.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from carpool.disk.centroids import probe
from carpool.disk.index import open_index
from indexer.settings import IndexerConfig, IndexerSettings
from tests.indexer.helpers import build

NLIST = 100
TOP_K = 5


@pytest.mark.data
@pytest.mark.long
def test_evidence_among_the_first_five_is_within_a_point_of_exact_search(tmp_path: Path) -> None:
    data = Path(os.environ["CARPOOL_DATA"])
    ids, query_ids = (
        [
            json.loads(line)["id"]
            for line in gzip.decompress((data / f"{name}.jsonl.gz").read_bytes()).splitlines()
        ]
        for name in ("wikipedia-16k", "claims-fever")
    )
    evidence = {
        tuple(line.split("\t")[:2]) for line in (data / "qrels-fever.tsv").read_text().splitlines()
    }
    vectors, queries = (
        np.load(data / "embeddings" / f"{name}.npy", allow_pickle=False).astype(np.float32)
        for name in ("wikipedia-16k", "claims-fever")
    )
    manifest = build(
        data / "wikipedia-16k.jsonl.gz",
        tmp_path / "index",
        IndexerConfig(indexer=IndexerSettings()),
        nlist=NLIST,
        vectors=data / "embeddings" / "wikipedia-16k.npy",
        fingerprint="feed",
    ).manifest
    index = open_index(tmp_path / "index")
    index.close()
    owners = probe(index.centroids, vectors, 1)[:, 0]

    def share_found(nprobe: int) -> float:
        """Percent of the claims with an evidence page among their best rows."""
        hits = 0
        for query_id, query, near in zip(
            query_ids, queries, probe(index.centroids, queries, nprobe), strict=True
        ):
            scores = np.where(np.isin(owners, near), vectors @ query, -np.inf)
            best = np.argsort(-scores, kind="stable")[:TOP_K]
            hits += any((query_id, ids[row]) in evidence for row in best)
        return 100 * hits / len(queries)

    exact = share_found(NLIST)
    assert exact == pytest.approx(91.8, abs=0.05)
    assert share_found(manifest.nprobe_default) >= exact - 1 > share_found(5)

"""The default nprobe finds what exact search finds, within a point, on claims whose evidence page
is known.
"""

import gzip
import json
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from carpool.disk.centroids import probe
from carpool.disk.index import open_index
from indexer.settings import IndexerConfig, IndexerSettings
from tests.indexer.helpers import build

TOP = 5
CONFIG = IndexerConfig(indexer=IndexerSettings())


class Evidence:
    """The claims, which pages prove them, and all passages in the order of their scores, from one
    exact search.
    """

    def __init__(self, data: Path) -> None:
        with gzip.open(data / "wikipedia-16k.jsonl.gz", "rt") as file:
            self.ids = [json.loads(line)["id"] for line in file]
        with gzip.open(data / "claims-fever.jsonl.gz", "rt") as file:
            self.query_ids = [json.loads(line)["id"] for line in file]
        self.pages: dict[str, set[str]] = defaultdict(set)
        for line in (data / "qrels-fever.tsv").read_text().splitlines():
            query_id, page = line.split("\t")[:2]
            self.pages[query_id].add(page)
        self.vectors, self.queries = (
            np.load(data / "embeddings" / f"{name}.npy", allow_pickle=False).astype(np.float32)
            for name in ("wikipedia-16k", "claims-fever")
        )
        self.ranked = np.argsort(-(self.queries @ self.vectors.T), axis=1, kind="stable")

    def found_share(self, ranked: Iterable[np.ndarray]) -> float:
        """Percent of the queries with an evidence page among their first five rows."""
        hits = [
            any(self.ids[row] in self.pages[query] for row in rows[:TOP])
            for query, rows in zip(self.query_ids, ranked, strict=True)
        ]
        return 100 * sum(hits) / len(hits)


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return Evidence(Path(os.environ["CARPOOL_DATA"]))


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("nlist", [100, 400])
def test_evidence_among_the_first_five_is_within_a_point_of_exact_search(
    evidence: Evidence, tmp_path: Path, nlist: int
) -> None:
    data = Path(os.environ["CARPOOL_DATA"])
    manifest = build(
        data / "wikipedia-16k.jsonl.gz",
        tmp_path / "index",
        CONFIG,
        nlist=nlist,
        vectors=data / "embeddings" / "wikipedia-16k.npy",
        fingerprint="feed",
    ).manifest
    assert (manifest.row_count, manifest.nlist) == (16_152, nlist)
    index = open_index(tmp_path / "index")
    assert [
        document.doc_id for document in map(index.documents.document, range(manifest.row_count))
    ] == evidence.ids
    index.close()
    exact = evidence.found_share(evidence.ranked)
    assert exact == pytest.approx(91.8, abs=0.05)
    clusters = probe(index.centroids, evidence.vectors, 1)[:, 0]
    nearest = probe(index.centroids, evidence.queries, nlist).astype(np.int64)
    place = np.argsort(nearest, axis=1)  # of each cluster among those that are nearest to the query
    places = np.take_along_axis(place, clusters[evidence.ranked], axis=1)
    shares = {}
    for nprobe in (5, 10, 16, 20, 24, 32, manifest.nprobe_default):
        probed = (rows[at < nprobe] for rows, at in zip(evidence.ranked, places, strict=True))
        shares[nprobe] = round(evidence.found_share(probed), 1)
    print(f"exact {exact:.1f} %, nlist {nlist}: {shares}")
    assert shares[manifest.nprobe_default] >= exact - 1, shares
    assert shares[5] < exact - 1, shares

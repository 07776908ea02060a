"""Exact mode on real text: the stage's hits are those of an in-memory FAISS IVF-Flat with the same
centroids and probes.

With float16 in the pages, those of FAISS over the vectors as they were rounded: nothing else may be
lost.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carpool.disk.documents import Document
from carpool.disk.pages import VectorDtype
from searcher.passages.open import PASSAGE_BUFFERS_BYTES
from tests.searcher.helpers import Float32, SmallIndex, make_group, normalised, running, write_index

pytestmark = pytest.mark.data

NLIST = 100
TOP_K = 5
SCORE_TOLERANCE = 1e-5


def data(name: str) -> Path:
    return Path(os.environ["CARPOOL_DATA"]) / name


def embeddings(name: str) -> Float32:
    return normalised(
        np.load(data(f"embeddings/{name}.npy"), allow_pickle=False).astype(np.float32)
    )


def lines(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(data(f"{name}.jsonl.gz"), "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def stored(vector_dtype: VectorDtype) -> Float32:
    """The vectors of the passages, rounded to what the pages keep."""
    return embeddings("wikipedia-16k").astype(vector_dtype).astype(np.float32)


@pytest.fixture(scope="module", params=["float32", "float16"])
def vector_dtype(request: pytest.FixtureRequest) -> VectorDtype:
    name: VectorDtype = request.param
    return name


@pytest.fixture(scope="module")
def faiss_ivf(vector_dtype: VectorDtype) -> Any:
    """An IVF-Flat index by inner product over the passages, with spherical k-means centroids."""
    import faiss

    vectors = stored(vector_dtype)
    faiss.omp_set_num_threads(1)
    quantizer = faiss.IndexFlatIP(vectors.shape[1])
    ivf = faiss.IndexIVFFlat(quantizer, vectors.shape[1], NLIST, faiss.METRIC_INNER_PRODUCT)
    ivf.cp.spherical, ivf.cp.niter, ivf.cp.seed = True, 10, 7
    ivf.train(vectors)
    ivf.add(vectors)
    return ivf


@pytest.fixture(scope="module")
def index(
    faiss_ivf: Any, vector_dtype: VectorDtype, tmp_path_factory: pytest.TempPathFactory
) -> SmallIndex:
    documents = [
        Document(doc_id=d["id"], title=d["title"], text=d["text"]) for d in lines("wikipedia-16k")
    ]
    centroids = faiss_ivf.quantizer.reconstruct_n(0, NLIST)
    return write_index(
        tmp_path_factory.mktemp("index"),
        stored(vector_dtype),
        centroids,
        documents=documents,
        nprobe=10,
        vector_dtype=vector_dtype,
    )


def test_539_claims_find_what_faiss_finds_but_for_scores_that_tie(
    faiss_ivf: Any, index: SmallIndex
) -> None:
    nprobe = 10
    claims = embeddings("claims-fever")
    assert len(claims) == 539
    faiss_ivf.nprobe = nprobe
    scores, rows = faiss_ivf.search(claims, TOP_K)
    ids = [document["id"] for document in lines("wikipedia-16k")]
    groups = [
        make_group(index, list(claims[at : at + 20]), nprobe=nprobe, top_k=TOP_K, sequence=at)
        for at in range(0, len(claims), 20)
    ]
    # A third of the index fits: clusters come and go while the claims are searched.
    budget_bytes = index.size_bytes // 3 + PASSAGE_BUFFERS_BYTES
    with running(index, budget_bytes=budget_bytes) as run:
        found = run.search(*groups)
        assert run.count("cluster_requests_total", tier="ssd") > 0
    differing = 0
    for at in range(len(claims)):
        retrieval = found[f"q{at // 20 * 20}-{at % 20}"]
        mine = [(hit.doc_id, hit.score) for hit in retrieval.hits]
        assert np.allclose([score for _, score in mine], scores[at], atol=SCORE_TOLERANCE, rtol=0)
        differing += [doc_id for doc_id, _ in mine] != [ids[row] for row in rows[at]]
        for (doc_id, _), row, score in zip(mine, rows[at], scores[at], strict=True):
            if doc_id != ids[row]:
                # Another passage in this place is right only where its own score ties with the one
                # that FAISS put there.
                own = float(index.vectors[ids.index(doc_id)] @ claims[at])
                assert abs(own - float(score)) < SCORE_TOLERANCE
    assert differing <= 5

"""A base gets new centroids: the same documents are found, in clusters of a new build."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from carpool.clock import SystemClock
from carpool.corpus.base_folders import newest_dir
from carpool.digest import digest_of
from carpool.disk.document_keys import DocumentKeys
from carpool.disk.manifest import BaseFacts, is_newer, read_manifest, write_manifest
from carpool.disk.pages import VectorDtype
from indexer.progress import SilentProgress
from indexer.retrain import retrain
from indexer.save import save_base
from indexer.settings import IndexerSettings
from indexer.verify import verify_index
from searcher.local import LocalSearcher
from searcher.settings import SearcherSettings
from tests.disk.helpers import normalised
from tests.searcher.helpers import write_index

FACTS = BaseFacts(position={0: 7}, vectors={0: 8})


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_same_documents_are_found_in_new_clusters(tmp_path: Path, dtype: VectorDtype) -> None:
    random = np.random.default_rng(3)
    vectors = normalised(random.standard_normal((6_000, 16)))
    centroids = normalised(random.standard_normal((3, 16)))
    index = write_index(tmp_path, vectors, centroids, has_codes=True, vector_dtype=dtype)
    old = msgspec.structs.replace(index.manifest, index_version="2020-01-01T00:00:00Z-0")
    write_manifest(tmp_path, old)
    base, clock = tmp_path / "bases" / "1", SystemClock()
    hidden = [digest_of(b"d3")]
    before = save_base(tmp_path, base, FACTS, hidden, [], clock, SilentProgress())
    new = tmp_path / "bases" / "1-new"
    made = retrain(base, new, IndexerSettings(), clock, SilentProgress())
    assert made == read_manifest(new) and not verify_index(new, SilentProgress()).problems
    assert made.base is not None and made.base.position == FACTS.position
    assert is_newer(made.index_version, before.index_version) and made.row_count == 5_999
    assert made.centroids_fingerprint != before.centroids_fingerprint
    assert newest_dir(tmp_path) == new
    keys = DocumentKeys.open(new, made)
    assert len(keys.passages_of(digest_of(b"d4"))) == 1 and not keys.passages_of(hidden[0])
    auto = SearcherSettings(direct_io="auto")
    queries = normalised(random.standard_normal((5, 16)))
    results = []
    for folder in (base, new):
        with LocalSearcher(folder, settings=auto, nprobe=read_manifest(folder).nlist) as searcher:
            found = searcher.search(queries, top_k=9, mode="exact")
            results.append([[(hit.doc_id, hit.text) for hit in each.hits] for each in found])
    assert results[0] == results[1]

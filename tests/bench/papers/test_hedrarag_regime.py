"""The regime of slow searches in `carpool bench paper hedrarag`: budgets, sub-stages, figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.data.index import BenchIndex
from bench.papers.hedrarag.contestants import OF_SUBSTAGES
from bench.papers.hedrarag.loads import interval
from bench.papers.hedrarag.regime import collection_index, settings_of
from bench.papers.hedrarag.substages import changed
from bench.papers.options import HedraRagOptions
from carpool.clock import SystemClock
from carpool.disk.manifest import read_manifest
from carpool.disk.settings import IndexSettings
from carpool.errors import ConfigError
from carpool.telemetry.metrics import Metrics
from carpool.testing.prefix_cache import BLOCK_TOKENS, PrefixCache
from schemas.record import ClusterId
from searcher.build import open_searcher
from searcher.executor import Search, SearchGroup
from searcher.local import SearchThread
from searcher.settings import SearcherSettings
from tests.e2e.support import build_index

CLUSTERS = tuple(map(ClusterId, range(4)))


def test_all_searchers_get_the_mode_and_a_share_of_the_bytes_that_it_reads(tmp_path: Path) -> None:
    dir = build_index(tmp_path, documents=60, nlist=4)
    index = BenchIndex(dir=dir, manifest=read_manifest(dir))
    whole, half = (settings_of(index, HedraRagOptions(memory_share=one)) for one in (1.0, 0.5))
    assert whole["CARPOOL_SEARCHER_SEARCH_MODE"] == "exact"
    name = "CARPOOL_SEARCHER_BUDGET_BYTES"
    assert int(whole[name]) == index.facts["segment_bytes"] == 2 * int(half[name])
    with pytest.raises(ConfigError, match="too little for paged codes"):
        settings_of(index, HedraRagOptions(mode="paged"))
    with pytest.raises(ConfigError, match="carpool bench data"):
        collection_index(tmp_path / "absent", 0)


@pytest.mark.parametrize("name", OF_SUBSTAGES)
def test_other_substages_find_the_same(tmp_path: Path, name: str) -> None:
    index = build_index(tmp_path, documents=60, nlist=4)
    vectors = np.eye(read_manifest(index).dimension, dtype=np.float32)[:6]
    settings = SearcherSettings(search_mode="exact", direct_io="auto")

    def found() -> list[tuple[int, list[int]]]:
        opened = open_searcher(settings, IndexSettings(dir=str(index)), Metrics(), SystemClock())
        thread = SearchThread(opened.plane)
        for key, vector in enumerate(vectors):  # one joins while others are in progress
            search = Search(key=key, vector=vector, clusters=CLUSTERS, top_k=10, mode="exact")
            thread.join(SearchGroup(searches=(search,)))
        taken = [thread.take(timeout_s=60.0) for _ in vectors]
        thread.close()
        opened.passages.close()
        return sorted((one.key, result.best.rows.tolist()) for one, result in taken if result)

    expected = found()
    with changed(name):
        assert found() == expected and len(expected) == len(vectors)


def test_an_interval_contains_its_percentile() -> None:
    low, high = interval([*map(float, range(1, 201))], 50)
    assert 80 < low < 100.5 < high < 121 and interval([], 50) == ()


def test_a_prefix_is_cached_in_blocks_up_to_the_first_other_token() -> None:
    ids = list(range(4 * BLOCK_TOKENS))
    with PrefixCache() as cache:
        assert cache.take(ids) == 0
        assert cache.take([*ids, 1]) == len(ids)
        assert cache.take([*ids[: 2 * BLOCK_TOKENS], 7, *ids]) == 2 * BLOCK_TOKENS
        assert cache.take([9, *ids]) == 0, "a later block depends on those before it"

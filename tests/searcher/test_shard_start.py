"""What a hot shard holds at first: learned from the log, made as small as its target allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from carpool.clock import SystemClock
from carpool.disk.settings import IndexSettings
from carpool.errors import ConfigError
from carpool.telemetry.metrics import Metrics
from searcher import open_shard as start
from searcher.build import BothPlanes, OpenSearcher, open_searcher, uses_horizon
from searcher.codes.open import CodesPlane
from searcher.local import LocalSearcher
from searcher.plan.search_times import TimeSample
from searcher.settings import SearcherSettings
from searcher.shard.hot_shard import HotShard
from searcher.shard.recent_probes import RecentQuery
from tests.searcher.codes_rig import DIMENSION, directions, make_index
from tests.searcher.helpers import SmallIndex
from tests.waiting import wait_until

BUDGET_BYTES = 8 << 20
SHARD_BYTES = 1 << 20
WITHOUT = SearcherSettings(budget_bytes=BUDGET_BYTES, direct_io="auto")
WITH = SearcherSettings(
    budget_bytes=BUDGET_BYTES, direct_io="auto", shard="ram", shard_bytes_max=SHARD_BYTES
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    return make_index(tmp_path_factory.mktemp("start"))


def opened(
    index: SmallIndex, settings: SearcherSettings, recent: Sequence[Sequence[int]]
) -> tuple[OpenSearcher, Metrics]:
    asked: list[str] = []

    def read(version: str) -> list[RecentQuery]:
        asked.append(version)
        vectors = directions(len(recent), DIMENSION, seed=9)
        return [
            RecentQuery(vector, np.array(one, np.int64))
            for vector, one in zip(vectors, recent, strict=True)
        ]

    metrics = Metrics()
    searcher = open_searcher(
        settings,
        IndexSettings(dir=str(index.dir)),
        metrics,
        SystemClock(),
        recent=read,
    )
    assert asked == [searcher.manifest.index_version]
    return searcher, metrics


def shard_of(searcher: OpenSearcher) -> HotShard | None:
    assert isinstance(searcher.plane, BothPlanes)
    assert isinstance(searcher.plane.codes, CodesPlane)
    return searcher.plane.codes.shard


def live_after_loading(shard: HotShard, count: int) -> frozenset[int]:
    wait_until(lambda: len(shard.live) >= count, "the clusters are loaded")
    return frozenset(shard.live)


def test_the_clusters_that_earlier_queries_probed_most_are_loaded(index: SmallIndex) -> None:
    recent = [[1, 4, 5]] * 30 + [[4, 9, 2]] * 20 + [[7, 4, 1]] * 10
    row_bytes = 2 * 32 + 8
    sizes = [extent.row_count * row_bytes for extent in index.extents]
    two = sizes[4] + sizes[1]
    settings = SearcherSettings(
        budget_bytes=BUDGET_BYTES, direct_io="auto", shard="ram", shard_bytes_max=two + 100
    )
    searcher, metrics = opened(index, settings, recent)
    try:
        shard = shard_of(searcher)
        assert shard is not None
        assert live_after_loading(shard, 2) == {4, 1}
        expected = metrics.registry.get_sample_value("carpool_shard_hit_rate_expected")
        assert expected is not None and 0.4 < expected < 0.7
    finally:
        searcher.close()


@pytest.mark.parametrize(("target_ms", "clusters"), [(60_000, 0), (200, 2), (1, 12)])
def test_the_shard_is_as_small_as_its_target_allows(
    index: SmallIndex, monkeypatch: pytest.MonkeyPatch, target_ms: int, clusters: int
) -> None:
    # All clusters of a query take 120 ms, so a target of 200 ms leaves less than 100 for scans.
    samples = [
        TimeSample(batch, share, 1_000 + 120_000 * share * batch)
        for batch in (1, 2, 4)
        for share in (1.0, 0.5, 0.25)
    ]
    monkeypatch.setattr(start, "measure_times", lambda *given: samples)
    settings = msgspec.structs.replace(WITH, shard_target_ms=target_ms, scoring_threads=1)
    recent = [[1, 4, one % 10 + 2 * (one % 10 in (1, 4))] for one in range(200)]
    searcher, _ = opened(index, settings, [sorted(set(one)) for one in recent])
    try:
        shard = shard_of(searcher)
        assert len(live_after_loading(shard, clusters)) == clusters if shard else not clusters
    finally:
        searcher.close()


@pytest.mark.parametrize("recent", [[], [[1, 4, 5]] * 40])
def test_results_are_those_without_a_shard(
    index: SmallIndex, recent: Sequence[Sequence[int]]
) -> None:
    queries = index.vectors[:200] + np.float32(0.01)
    with LocalSearcher(index.dir, settings=WITHOUT, nprobe=4) as searcher:
        expected = searcher.search(queries, top_k=5)
        exactly = searcher.search(queries[:20], top_k=5, mode="exact")
    with LocalSearcher(index.dir, settings=WITH, nprobe=4) as searcher:
        for _ in range(3):
            assert ids(searcher.search(queries, top_k=5)) == ids(expected)
        assert ids(searcher.search(queries[:20], top_k=5, mode="exact")) == ids(exactly)


def ids(results: object) -> list[list[str]]:
    return [[hit.doc_id for hit in result.hits] for result in results]  # type: ignore[attr-defined]


def test_the_shard_is_part_of_the_budget(index: SmallIndex) -> None:
    metrics = []
    for settings in (WITHOUT, WITH):
        searcher, each = opened(index, settings, []) if settings is WITH else (None, Metrics())
        if searcher is None:
            searcher = open_searcher(
                settings, IndexSettings(dir=str(index.dir)), each, SystemClock()
            )
        metrics.append(each.registry.get_sample_value("carpool_budget_bytes"))
        searcher.close()
    assert metrics[0] is not None and metrics[1] is not None
    assert max(metrics) <= BUDGET_BYTES


def test_an_index_without_codes_has_no_shard(tmp_path: Path) -> None:
    index = make_index(tmp_path / "plain", codecs=())
    with pytest.raises(ConfigError, match="needs codes"):
        open_searcher(WITH, IndexSettings(dir=str(index.dir)), Metrics(), SystemClock())


def test_a_machine_without_a_gpu_says_so(index: SmallIndex) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    settings = SearcherSettings(budget_bytes=BUDGET_BYTES, direct_io="auto", shard="gpu")
    with pytest.raises(ConfigError, match="GPU"):
        opened(index, settings, [])


def test_a_grouper_writes_the_horizon_for_a_shard(index: SmallIndex) -> None:
    assert not uses_horizon(index.dir, WITHOUT)
    assert uses_horizon(index.dir, WITH)

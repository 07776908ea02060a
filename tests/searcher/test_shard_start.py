"""A searcher that opens a hot shard: what it takes, what it may not change, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from carpool.clock import SystemClock
from carpool.disk.settings import IndexSettings
from carpool.errors import ConfigError
from carpool.telemetry.metrics import Metrics
from searcher.build import BothPlanes, OpenSearcher, open_searcher
from searcher.codes.open import CodesPlane
from searcher.local import LocalSearcher
from searcher.settings import SearcherSettings
from tests.searcher.codes_rig import make_index
from tests.searcher.helpers import SmallIndex
from tests.waiting import wait_until

BUDGET_BYTES = 8 << 20
WITHOUT = SearcherSettings(budget_bytes=BUDGET_BYTES, direct_io="auto")
WITH = msgspec.structs.replace(WITHOUT, shard="ram", shard_bytes=1 << 20)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    return make_index(tmp_path_factory.mktemp("start"))


def opened(
    index: SmallIndex, settings: SearcherSettings, metrics: Metrics | None = None
) -> OpenSearcher:
    return open_searcher(
        settings,
        IndexSettings(dir=str(index.dir)),
        metrics or Metrics(),
        SystemClock(),
    )


@pytest.mark.parametrize(("bytes_max", "codec"), [(1 << 20, "float16"), (100_000, "sq8")])
def test_a_number_takes_a_byte_where_not_all_clusters_fit_in_two(
    index: SmallIndex, bytes_max: int, codec: str
) -> None:
    searcher = opened(index, msgspec.structs.replace(WITH, shard_bytes=bytes_max))
    try:
        assert isinstance(searcher.plane, BothPlanes)
        assert isinstance(searcher.plane.codes, CodesPlane)
        shard = searcher.plane.codes.shard
        assert shard is not None and shard.codec == codec
    finally:
        searcher.close()


def test_results_are_those_without_a_shard(index: SmallIndex) -> None:
    queries = index.vectors[:200] + np.float32(0.01)
    with LocalSearcher(index.dir, settings=WITHOUT, nprobe=4) as searcher:
        expected = searcher.search(queries, top_k=5)
        exactly = searcher.search(queries[:20], top_k=5, mode="exact")
    settings = msgspec.structs.replace(WITH, shard_bytes=100_000)
    with LocalSearcher(index.dir, settings=settings, nprobe=4) as searcher:
        for _ in range(3):  # it is filled meanwhile
            assert ids(searcher.search(queries, top_k=5)) == ids(expected)
        plane: Any = searcher._thread.plane  # type: ignore[union-attr]
        wait_until(lambda: plane.codes.shard.live, "clusters that queries probe enter")
        assert ids(searcher.search(queries[:20], top_k=5, mode="exact")) == ids(exactly)


def test_a_shard_in_memory_is_part_of_the_budget(index: SmallIndex) -> None:
    for settings in (WITHOUT, WITH):
        metrics = Metrics()
        opened(index, settings, metrics).close()
        budget_bytes = metrics.registry.get_sample_value("carpool_budget_bytes")
        assert budget_bytes is not None and budget_bytes <= BUDGET_BYTES
    too_large = msgspec.structs.replace(WITH, shard_bytes=BUDGET_BYTES)
    with pytest.raises(ConfigError, match="no codes"):
        opened(index, too_large)


def ids(results: object) -> list[list[str]]:
    return [[hit.doc_id for hit in result.hits] for result in results]  # type: ignore[attr-defined]


def test_an_index_without_codes_has_no_shard(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no codes"):
        opened(make_index(tmp_path / "plain", has_codes=False), WITH)


def test_a_machine_without_a_gpu_says_so(
    index: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match="GPU"):
        opened(index, msgspec.structs.replace(WITH, shard="gpu"))

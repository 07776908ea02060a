"""Exact searches and others in one index, and audits of what codes miss."""

from __future__ import annotations

import queue
import threading
from dataclasses import replace

import pytest

from carpool.clock import SystemClock
from carpool.codes import margin
from carpool.disk.index import open_index
from carpool.telemetry.metrics import Metrics
from schemas.query import SearchMode
from searcher.build import BothPlanes, open_search_plane
from searcher.executor import Search, SearchGroup, SearchResult
from searcher.executor_by_mode import ExecutorByMode
from searcher.settings import SearcherSettings
from tests.searcher.codes_rig import exact, make_index, missed, questions
from tests.searcher.helpers import SmallIndex
from tests.waiting import WAIT_S, wait_until

BUDGET_BYTES = 32 << 20
MODES: tuple[SearchMode, ...] = ("default", "margin", "exact")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    return make_index(tmp_path_factory.mktemp("modes"))


class Running:
    """Both executors at work, with an audit of each query in `audit_every`."""

    def __init__(self, index: SmallIndex, audit_every: int) -> None:
        self.metrics = Metrics()
        self.opened = open_index(index.dir)
        settings = SearcherSettings(budget_bytes=BUDGET_BYTES, direct_io="auto")
        plane = open_search_plane(self.opened, settings, self.metrics, SystemClock())
        assert isinstance(plane, BothPlanes)
        self.plane = plane
        self.executor = ExecutorByMode(
            plane.codes.executor,
            plane.exact.executor,
            self.metrics,
            audit_every=audit_every,
            idle_s=0.001,
        )
        self.found: queue.SimpleQueue[tuple[Search, SearchResult | None]] = queue.SimpleQueue()
        self.thread = threading.Thread(
            target=self.executor.run, args=(lambda *ended: self.found.put(ended),), daemon=True
        )
        self.thread.start()

    def search(self, searches: list[Search]) -> dict[int, SearchResult | None]:
        self.executor.join(SearchGroup(searches=tuple(searches)))
        return {
            search.key: found
            for search, found in (self.found.get(timeout=WAIT_S) for _ in searches)
        }

    def counted(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(f"carpool_{name}_total") or 0

    def close(self) -> None:
        self.executor.stop()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()
        self.executor.check_integrity()
        self.plane.close()
        self.opened.close()


def test_each_query_gets_its_promise_under_its_own_key(index: SmallIndex) -> None:
    searches = questions(index, 90, 5)
    for number, mode in enumerate(MODES):
        searches[number::3] = [replace(one, mode=mode) for one in searches[number::3]]
    running = Running(index, audit_every=1000)
    found = running.search(searches)
    running.close()
    for search in searches:
        result = found[search.key]
        assert result is not None and result.mode == search.mode
        if search.mode == "exact":
            assert result.best.rows.tolist() == exact(index, search)
    assert missed(index, searches, found) <= 2


def test_with_every_query_audited_the_metrics_equal_the_count(
    index: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(margin._DEVIATIONS, "default", 0.8)  # so that something is missed
    searches = questions(index, 400, 5, seed=11)
    running = Running(index, audit_every=1)
    found = running.search(searches)
    wait_until(lambda: running.counted("audited_ids") >= 7 * len(searches), "all are audited")
    running.close()
    assert running.counted("audited_ids") == 7 * len(searches)
    assert running.counted("missed_ids") == missed(index, searches, found) > 0


def test_dropped_queries_are_forgotten_by_both(index: SmallIndex) -> None:
    searches = questions(index, 40, 5)
    searches[::2] = [replace(search, mode="exact") for search in searches[::2]]
    running = Running(index, audit_every=1000)
    running.executor.join(SearchGroup(searches=tuple(searches)))
    running.executor.drop([search.key for search in searches[20:]])
    kept = {search.key for search in searches[:20]}
    seen = set()
    while not kept <= seen:
        seen.add(running.found.get(timeout=WAIT_S)[0].key)
    running.close()

"""Exact searches and others in one index, and audits of what codes miss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from carpool.clock import SystemClock
from carpool.codes import margin
from carpool.disk.index import open_index
from carpool.telemetry.metrics import Metrics
from schemas.query import SearchMode
from searcher.build import BothPlanes, open_search_plane
from searcher.executor import SearchGroup
from searcher.executor_by_mode import ExecutorByMode
from searcher.settings import SearcherSettings
from tests.searcher.codes_rig import exact, make_index, missed, questions
from tests.searcher.helpers import SmallIndex, mask_of, some_visible
from tests.searcher.searching import Searching
from tests.waiting import wait_until

BUDGET_BYTES = 32 << 20
MODES: tuple[SearchMode, ...] = ("default", "exact")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    return make_index(tmp_path_factory.mktemp("modes"))


@contextmanager
def running(index: SmallIndex, audit_every: int = 1000) -> Iterator[Searching]:
    """Both executors at work, with an audit of each query in `audit_every`."""
    metrics, opened = Metrics(), open_index(index.dir)
    settings = SearcherSettings(budget_bytes=BUDGET_BYTES, direct_io="auto")
    plane = open_search_plane(opened, settings, metrics, SystemClock())
    assert isinstance(plane, BothPlanes)
    executor = ExecutorByMode(
        plane.codes.executor, plane.exact.executor, metrics, audit_every=audit_every, idle_s=0.001
    )
    here = Searching(replace(plane, executor=executor), metrics)
    yield here
    here.close()
    opened.close()


def test_each_query_gets_its_promise_under_its_own_key(index: SmallIndex) -> None:
    searches = questions(index, 90, 5)
    for number, mode in enumerate(MODES):
        searches[number::2] = [replace(one, mode=mode) for one in searches[number::2]]
    with running(index) as here:
        found = here.search(searches)
    for search in searches:
        result = found[search.key]
        assert result is not None and result.mode == search.mode
        if search.mode == "exact":
            assert result.best.rows.tolist() == exact(index, search)
    assert missed(index, searches, found) <= 2


def test_hidden_rows_take_no_place_in_either_search(index: SmallIndex) -> None:
    are_visible = some_visible(index)
    searches = [replace(one, mode=MODES[one.key % 2]) for one in questions(index, 90, 5)]
    with running(index) as here:
        here.hide_all_but(mask_of(index, are_visible))
        found = here.search(searches)
    assert missed(index, searches, found, are_visible) <= 2


def test_with_every_query_audited_the_metrics_equal_the_count(
    index: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(margin, "DEVIATIONS", 0.8)  # so that something is missed
    searches = questions(index, 400, 5, seed=11)
    with running(index, audit_every=1) as here:
        found = here.search(searches)
        wait_until(lambda: here.count("audited_ids_total") >= 7 * len(searches), "all are audited")
    assert here.count("audited_ids_total") == 7 * len(searches)
    assert here.count("missed_ids_total") == missed(index, searches, found) > 0


def test_dropped_queries_are_forgotten_by_both(index: SmallIndex) -> None:
    searches = questions(index, 40, 5)
    searches[::2] = [replace(search, mode="exact") for search in searches[::2]]
    with running(index) as here:
        here.executor.join(SearchGroup(searches=tuple(searches)))
        here.executor.drop([search.key for search in searches[20:]])
        kept = {search.key for search in searches[:20]}
        while kept:  # one that is dropped may have ended before
            kept -= here.take(1).keys()

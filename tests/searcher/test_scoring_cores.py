"""Threads of a run are on different cores while it lasts; where that cannot be, nothing is done."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from carpool.disk.pages import ClusterPages, choose_layout, encode_pages
from searcher.scoring import pool as scoring_pool
from searcher.scoring.cores import ScoringCores
from searcher.scoring.pool import ScoringPool
from searcher.scoring.query_batch import QueryBatch, Scoring
from searcher.scoring.top_k import TopTable

needs_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two cores",
)


@pytest.fixture
def helpers() -> Iterator[list[int]]:
    end = threading.Event()
    threads = [threading.Thread(target=end.wait, daemon=True) for _ in range(5)]
    for thread in threads:
        thread.start()
    yield [thread.native_id for thread in threads if thread.native_id is not None]
    end.set()
    for thread in threads:
        thread.join()


@needs_cores
@pytest.mark.parametrize("count", [1, 2, 5])
def test_each_thread_gets_cores_apart_from_the_callers_and_the_caller_gets_its_own_back(
    helpers: list[int], count: int
) -> None:
    before = os.sched_getaffinity(0)
    cores = ScoringCores()
    cores.part(helpers[:count])
    try:
        mine = os.sched_getaffinity(0)
        theirs = [os.sched_getaffinity(helper) for helper in helpers[:count]]
    finally:
        cores.join()
    assert os.sched_getaffinity(0) == before
    assert len(mine) == 1
    assert all(each and each <= before - mine for each in theirs)
    assert set().union(*theirs) == before - mine or count < len(before) - 1
    if count <= len(before) - 1:
        assert sum(map(len, theirs)) == len(before) - 1, "no two helpers share a core"


def test_nothing_is_done_where_one_core_is_all_there_is(
    helpers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: {0})
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda thread, cores: pytest.fail("cores were changed")
    )
    cores = ScoringCores()
    cores.part(helpers)
    cores.join()


@needs_cores
def test_a_system_that_does_not_allow_it_is_asked_once(
    helpers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(thread: int, cores: Any) -> None:
        asked.append(thread)
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    cores = ScoringCores()
    cores.part(helpers)
    cores.part(helpers)
    cores.join()
    assert asked == helpers[:1]


@needs_cores
def test_helpers_are_moved_again_only_when_the_caller_is_on_another_core_or_has_others(
    helpers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[tuple[int, list[int]]] = []
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda thread, cores: moved.append((thread, sorted(cores)))
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: {4, 5, 6})
    cores = ScoringCores()

    def turn(core: int, *asked: int) -> list[tuple[int, list[int]]]:
        monkeypatch.setattr(cores, "_current_core", lambda: core)
        moved.clear()
        cores.part(asked)
        cores.part(asked)  # it has its core already
        cores.join()
        cores.join()
        return list(moved)

    me = threading.get_native_id()
    assert turn(4, 71, 72) == [(71, [5]), (72, [6]), (0, [4]), (me, [4, 5, 6])]
    assert turn(4, 71, 72) == [(0, [4]), (me, [4, 5, 6])]
    assert turn(5, 71, 72) == [(71, [4]), (72, [6]), (0, [5]), (me, [4, 5, 6])]
    assert turn(5, 71) == [(71, [4, 6]), (0, [5]), (me, [4, 5, 6])]
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: {5, 6})
    assert turn(5, 71) == [(71, [6]), (0, [5]), (me, [5, 6])]


@needs_cores
def test_the_thread_that_scores_has_all_its_cores_when_it_rests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scoring_pool, "PART_COST_MIN", 4096)
    layout = choose_layout(16, "float32")
    pages = encode_pages(layout, np.ones((5_000, 16), np.float32), np.arange(5_000), seed=0)
    cluster = ClusterPages(0, layout, 5_000, (pages,))
    narrowed = []
    change = os.sched_setaffinity

    def note(thread: int, cores: Any) -> None:
        narrowed.append(len(set(cores)))
        change(thread, cores)

    monkeypatch.setattr(os, "sched_setaffinity", note)
    before = os.sched_getaffinity(0)
    table = TopTable()
    slots = np.array([table.add(3), table.add(3)])
    with ScoringPool(2) as pool:
        pool.run(
            [Scoring(cluster, np.arange(2))], QueryBatch(slots, np.ones((2, 16), np.float32)), table
        )
        assert narrowed == [len(before) - 1, 1]
        pool.rest()
        assert narrowed == [len(before) - 1, 1, len(before)]
        with pytest.raises(ValueError, match="mismatch"):
            pool.run(
                [Scoring(cluster, np.arange(2))],
                QueryBatch(slots, np.ones((2, 9), np.float32)),
                table,
            )
        assert os.sched_getaffinity(0) != before
    assert os.sched_getaffinity(0) == before

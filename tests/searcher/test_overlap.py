"""Reading ahead overlaps with scoring: the one test whose subject is elapsed time."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from carpool.clock import SystemClock
from schemas.record import ClusterId
from searcher.execution import query_by_query
from searcher.plan.reads import PrefetchMode
from searcher.plan.steps import Purpose
from searcher.scoring.scan import score_pages
from searcher.scoring.top_k import Candidates
from searcher.store.engine import BlockEngine, BlockRead
from searcher.store.files import SegmentFiles
from searcher.store.threads import ThreadEngine
from tests.searcher.helpers import SmallIndex, make_group, make_unit, random_index, running

STEP_S = 0.03
"""Slowed reads and slowed scorings take this long; everything else together takes a hundredth of
it.
"""

Interval = tuple[int, int]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    return random_index(tmp_path_factory.mktemp("index"), nlist=16)


class Intervals:
    """An event log that keeps everything."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reads: dict[Purpose, list[Interval]] = {"demand": [], "prefetch": []}
        self.scorings: list[Interval] = []

    def read(self, cluster: ClusterId, purpose: Purpose, started_us: int, ended_us: int) -> None:
        with self.lock:
            self.reads[purpose].append((started_us, ended_us))

    def scored(self, cluster: ClusterId, started_us: int, ended_us: int) -> None:
        with self.lock:
            self.scorings.append((started_us, ended_us))

    def all(self) -> list[Interval]:
        return self.reads["demand"] + self.reads["prefetch"] + self.scorings

    def wall_us(self) -> int:
        return max(end for _, end in self.all()) - min(start for start, _ in self.all())

    def sum_us(self) -> int:
        return sum(end - start for start, end in self.all())


def overlaps(some: list[Interval], others: list[Interval]) -> int:
    """How many of `some` intersect one of `others`."""
    return sum(
        any(start < end_2 and start_2 < end for start_2, end_2 in others) for start, end in some
    )


def slow_engine(files: SegmentFiles) -> BlockEngine:
    """The real one, with a wait before each read."""

    def read_block(read: BlockRead) -> None:
        time.sleep(STEP_S)
        files.read_block(read)

    return ThreadEngine(read_block, depth=2, prefetch_depth=1, clock=SystemClock())


@pytest.fixture(autouse=True)
def slow_scoring(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real scoring, and a wait that lets other threads run, as a large matrix product does."""

    def score(*given: Any) -> Candidates:
        time.sleep(STEP_S)
        return score_pages(*given)

    monkeypatch.setattr(query_by_query, "score_pages", score)


def search_groups(index: SmallIndex, *, prefetch: PrefetchMode, in_hand: bool) -> Intervals:
    """Twelve groups of one query with one cluster each: within a query there is nothing to
    overlap.
    """
    log = Intervals()
    groups = [
        make_group(index, [index.vectors[0]], clusters=[(n,)], next_clusters=(n + 1,), sequence=n)
        for n in range(12)
    ]
    with running(
        index,
        events=log,
        engine=slow_engine,
        execution="query_by_query",
        prefetch=prefetch,
        reads_in_flight_max=1,
        groups_in_hand_max=12,
    ) as run:
        run.wait_ready()
        for number, group in enumerate(groups):
            run.stage.offer(make_unit(number, group), 0)
            if not in_hand:
                run.sink.wait_done(number + 1)
        run.sink.wait_done(12)
    return log


@pytest.mark.parametrize("in_hand", [True, False], ids=["next group in hand", "next group advised"])
def test_prefetches_overlap_with_scoring_and_save_wall_time(
    index: SmallIndex, in_hand: bool
) -> None:
    log = search_groups(index, prefetch="overlapped", in_hand=in_hand)
    assert len(log.scorings) == 12
    assert overlaps(log.reads["prefetch"], log.scorings) >= 10
    assert log.wall_us() < 0.8 * log.sum_us()


@pytest.mark.parametrize("mode", ["none", "after_group"])
def test_without_prefetch_and_with_that_of_the_paper_nothing_overlaps(
    index: SmallIndex, mode: PrefetchMode
) -> None:
    """After a group's last search the next group begins at once: reading ahead for it is a demand
    by another name.
    """
    log = search_groups(index, prefetch=mode, in_hand=True)
    # The last group is advised of one more, which may or may not have been read when everything
    # ends.
    assert len(log.reads["prefetch"]) in ((0,) if mode == "none" else (11, 12))
    assert overlaps(log.reads["demand"] + log.reads["prefetch"], log.scorings) == 0
    assert log.wall_us() >= log.sum_us()


def test_within_a_query_clusters_are_scored_while_others_are_read(index: SmallIndex) -> None:
    log = Intervals()
    with running(
        index,
        events=log,
        engine=slow_engine,
        execution="query_by_query",
        prefetch="none",
        reads_in_flight_max=1,
    ) as run:
        run.search(make_group(index, [index.vectors[0]], clusters=[tuple(range(8))]))
    assert overlaps(log.scorings, log.reads["demand"]) >= 4
    assert log.wall_us() < 0.8 * log.sum_us()

"""The contestants that search as CaGR-RAG's program does: one cluster after the other, and only
then the search.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.baselines.build import query_by_query
from bench.retrieval.arrivals import ClosedLoop
from bench.retrieval.contestant import Counters, Dataset, Limits
from bench.retrieval.contestants.cagr import Grouping, Published
from bench.retrieval.contestants.carpool import Carpool
from bench.retrieval.contestants.faiss_ivf import PREPARATION, FaissIvf
from bench.retrieval.contestants.listing import ENTRIES, Listing, ReadsEnded
from bench.retrieval.contestants.listing_executor import (
    LoadThenScanExecutor,
    PrefetchingEdgeRag,
    one_after_the_other,
)
from carpool.clock import Clock, SystemClock
from carpool.disk.index import open_index
from carpool.errors import ConfigError, RetryableError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.build import SearchPlane, open_search_plane
from searcher.executor import Search, SearchGroup, SearchResult
from searcher.settings import SearcherSettings
from searcher.store.engine import BlockEngine, BlockRead
from searcher.store.files import SegmentFiles
from searcher.store.threads import ThreadEngine

NPROBE = 3
QUERIES = 50
READ_S = 0.003
"""Slowed reads take this long, so that whatever does not wait for one is seen to overlap with
it.
"""

Interval = tuple[int, int]
ReadBlock = Callable[[BlockRead], None]


class Log(ReadsEnded):
    """Keeps what happened. `order`: what ended or was answered, in words, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[ClusterId, str, Interval]] = []
        self.scorings: list[tuple[ClusterId, Interval]] = []
        self.order: list[str] = []

    def read(self, cluster: ClusterId, purpose: str, started_us: int, ended_us: int) -> None:
        self.reads.append((cluster, purpose, (started_us, ended_us)))
        self.order.append(f"{purpose} {cluster}")
        super().read(cluster, purpose, started_us, ended_us)

    def scored(self, cluster: ClusterId, started_us: int, ended_us: int) -> None:
        self.scorings.append((cluster, (started_us, ended_us)))

    def read_intervals(self) -> list[Interval]:
        return sorted(interval for _, _, interval in self.reads)


def overlap(one: Interval, other: Interval) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def bytes_of(index_dir: Path, clusters: Iterable[int]) -> int:
    index = open_index(index_dir)
    index.close()
    return sum(index.extents[cluster].size_bytes for cluster in clusters)


@pytest.fixture
def asked(dataset: Dataset, tiny_index: Path) -> Dataset:
    return replace(dataset, index_dir=tiny_index)


@pytest.fixture
def budget_bytes(tiny_index: Path) -> int:
    """Room for half of the clusters."""
    return bytes_of(tiny_index, range(8)) // 2


@pytest.fixture
def slow_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_engine(
        name: str, files: SegmentFiles, *, depth: int, prefetch_depth: int, clock: Clock
    ) -> BlockEngine:
        def read_block(read: BlockRead) -> None:
            time.sleep(READ_S)
            files.read_block(read)

        return ThreadEngine(read_block, depth=depth, prefetch_depth=prefetch_depth, clock=clock)

    monkeypatch.setattr("searcher.build.open_engine", open_engine)


def search(
    contestant: Carpool, dataset: Dataset, budget_bytes: int | None
) -> tuple[dict[int, list[int]], Counters, Log]:
    """Returns the ids of each query, the counters and the log."""
    contestant._busy = log = Log()
    found: dict[int, list[int]] = {}
    try:
        limits = Limits(memory_bytes=None, cache_bytes=budget_bytes, threads=2, window=10)
        contestant.open(dataset, limits)
        loop = ClosedLoop(dataset, range(QUERIES), window=10)
        for result in contestant.run(loop):
            loop.answered(result.query)
            found[result.query] = result.ids.tolist()
        counters = contestant.counters()
        assert contestant._plane is not None and contestant._thread is not None
        contestant._plane.executor.stop()
        contestant._thread.join(20)
        contestant._plane.executor.check_integrity()  # for idle moments
    finally:
        contestant.close()
    return found, counters, log


def listing(grouping: Grouping, *, prefetch: bool) -> Listing:
    return Listing("listing", grouping=grouping, prefetch="after_group" if prefetch else "none")


@pytest.mark.parametrize("name", ["edgerag-listing", "cagr-listing-greedy"])
def test_it_finds_what_faiss_finds_with_half_of_the_index_in_memory(
    name: str, asked: Dataset, budget_bytes: int
) -> None:
    (asked.prepared_dir / PREPARATION.name).mkdir()
    PREPARATION.make(asked, asked.prepared_dir / PREPARATION.name)
    faiss = FaissIvf("faiss", in_memory=True, one_by_one=False)
    faiss.open(asked, Limits(memory_bytes=None, threads=1, window=10))
    ids, _ = faiss.search(asked.queries, asked.probes, asked.top_k)
    made: Any = next(entry for entry in ENTRIES if entry.name == name).make()
    found, counters, _ = search(made, asked, budget_bytes)
    assert [found[number] for number in range(QUERIES)] == ids.tolist()
    assert counters.bytes_read > 2 * bytes_of(asked.index_dir, range(8))  # clusters came and went


@pytest.mark.parametrize("grouping", ["per_query", "greedy"])
def test_without_prefetching_it_reads_what_our_reader_reads(
    grouping: Grouping, asked: Dataset, budget_bytes: int
) -> None:
    """Section 3.1 says how clusters are loaded, not which: the order of loading evicts nothing
    else.
    """
    _, ours, log = search(
        Published("ours", grouping=grouping, prefetch="none"), asked, budget_bytes
    )
    _, theirs, their_log = search(listing(grouping, prefetch=False), asked, budget_bytes)
    assert theirs.bytes_read == ours.bytes_read > 2 * bytes_of(asked.index_dir, range(8))
    assert (theirs.cache_hits, theirs.cache_misses) == (ours.cache_hits, ours.cache_misses)
    assert sorted(cluster for cluster, _, _ in their_log.reads) == sorted(
        cluster for cluster, _, _ in log.reads
    )


@pytest.mark.usefixtures("slow_reads")
@pytest.mark.parametrize("prefetch", [False, True])
def test_one_cluster_is_read_at_a_time_and_none_while_another_is_scored(
    prefetch: bool, asked: Dataset, budget_bytes: int
) -> None:
    """Section 2.2: `for centroid in centroid_IDs: ev += load(centroid)`; section 3.1: once all
    clusters are loaded.
    """
    _, _, log = search(listing("greedy", prefetch=prefetch), asked, budget_bytes)
    assert {purpose for _, purpose, _ in log.reads} == (
        {"demand", "prefetch"} if prefetch else {"demand"}
    )
    reads = log.read_intervals()
    assert not any(overlap(*pair) for pair in pairwise(reads))
    assert len(log.scorings) == QUERIES * NPROBE
    for at in range(0, len(log.scorings), NPROBE):
        (scoring,) = {interval for _, interval in log.scorings[at : at + NPROBE]}  # all at once
        assert not any(overlap(read, scoring) for read in reads)


@pytest.mark.usefixtures("slow_reads")
def test_our_reader_reads_several_at_a_time(asked: Dataset, budget_bytes: int) -> None:
    """What the test above would see if it were not so."""
    _, _, log = search(Published("ours", grouping="greedy", prefetch="none"), asked, budget_bytes)
    assert any(overlap(*pair) for pair in pairwise(log.read_intervals()))


@pytest.mark.usefixtures("slow_reads")
def test_all_that_is_prefetched_is_there_when_the_next_group_begins(
    asked: Dataset, budget_bytes: int
) -> None:
    """Section 3.1: "as a result, all clusters at Query 2 are loaded from the cache"."""
    _, theirs, _ = search(listing("greedy", prefetch=True), asked, budget_bytes)
    assert theirs.others["prefetch_used"] > 0
    assert theirs.others["prefetch_late"] == theirs.others["prefetch_wasted"] == 0
    # Our reader goes on with the next group at once, and finds reads under way.
    _, ours, _ = search(
        Published("ours", grouping="greedy", prefetch="after_group"), asked, budget_bytes
    )
    assert ours.others["prefetch_late"] > 0


def test_a_query_whose_clusters_do_not_fit_together_is_refused(
    asked: Dataset, budget_bytes: int
) -> None:
    with pytest.raises(
        ConfigError, match=r"the clusters of one query take \d+ bytes.*lower --nprobe"
    ):
        search(listing("per_query", prefetch=False), asked, budget_bytes // 2)


def test_a_cluster_that_cannot_be_read_ends_the_run(asked: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(asked.index_dir, folder)
    index = open_index(folder)
    index.close()
    with index.segment_paths[0].open("r+b") as file:
        file.seek(index.extents[5].offset_bytes + 9)
        byte = file.read(1)[0]
        file.seek(index.extents[5].offset_bytes + 9)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(RetryableError, match="cluster 5 could not be read"):
        search(listing("per_query", prefetch=False), replace(asked, index_dir=folder), None)


# ---- the executor by itself


class Running:
    """The executor over an index, with what it answered; `read_block` stands in for the disk."""

    def __init__(
        self, index_dir: Path, *, read_block: Callable[[SegmentFiles], ReadBlock] | None = None
    ) -> None:
        index = open_index(index_dir)
        index.close()
        self.log = Log()
        self.found: dict[int, SearchResult] = {}
        metrics, clock = Metrics(), SystemClock()

        def engine(files: SegmentFiles) -> BlockEngine:
            read = read_block(files) if read_block is not None else files.read_block
            return ThreadEngine(read, depth=16, prefetch_depth=16, clock=clock)

        settings = SearcherSettings(budget_bytes=1 << 20, slice_bytes_max=0, scoring_threads=1)
        self.plane: SearchPlane = open_search_plane(
            index,
            settings,
            metrics,
            clock,
            events=self.log,
            engine=engine,
            executor=query_by_query("none"),
        )
        self.plane.executor.stop()
        policy = PrefetchingEdgeRag({})
        self.executor = LoadThenScanExecutor(
            memory=self.plane.memory,
            planner=one_after_the_other(
                self.plane.memory, policy, len(index.extents), "after_group"
            ),
            policy=policy,
            pool=self.plane.pool,
            ended=self.log.ended,
            metrics=metrics,
            clock=clock,
            events=self.log,
        )
        self.thread = threading.Thread(target=self.executor.run, args=(self._finish,), daemon=True)

    def _finish(self, search: Search, found: SearchResult | None) -> None:
        assert found is not None
        self.found[search.key] = found
        self.log.order.append(f"answer {search.key}")

    def join(self, *queries: tuple[int, tuple[int, ...]], next_query: tuple[int, ...] = ()) -> None:
        vector = np.full(16, 0.25, np.float32)
        searches = tuple(
            Search(key=key, vector=vector, clusters=tuple(map(ClusterId, clusters)), top_k=3)
            for key, clusters in queries
        )
        self.executor.join(
            SearchGroup(searches=searches, next_query=tuple(map(ClusterId, next_query)))
        )

    def until(self, key: int) -> None:
        deadline_s = time.monotonic() + 20
        while key not in self.found:
            assert time.monotonic() < deadline_s, "it was not answered"
            time.sleep(0.001)

    def close(self) -> None:
        self.executor.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()
        self.plane.close()


def test_a_group_is_answered_then_the_next_ones_first_query_is_loaded_then_it_begins(
    tiny_index: Path,
) -> None:
    """Algorithm 1, lines 32-40; section 3.1: "all clusters at Query 2 are loaded from the
    cache".
    """
    run = Running(tiny_index)
    run.join((0, (4, 2)), (1, (2, 6)), next_query=(7, 2, 1))
    run.join((2, (7, 2, 1)), (3, (0, 7)))
    run.thread.start()
    try:
        run.until(3)
    finally:
        run.close()
    assert run.log.order == [
        *("demand 4", "demand 2", "answer 0"),
        *("demand 6", "answer 1"),
        *("prefetch 7", "prefetch 1", "answer 2"),
        *("demand 0", "answer 3"),
    ]
    assert [[probe.tier for probe in run.found[key].probes] for key in range(4)] == [
        ["ssd", "ssd"],
        ["ram", "ssd"],
        ["ram", "ram", "ram"],
        ["ssd", "ram"],
    ]
    assert [run.found[key].bytes_read for key in range(4)] == [
        bytes_of(tiny_index, read) for read in ((4, 2), (6,), (), (0,))
    ]


def test_what_was_dropped_before_its_turn_is_neither_loaded_nor_answered(tiny_index: Path) -> None:
    run = Running(tiny_index)
    run.join((0, (4,)), (1, (5,)), (2, (6,)))
    run.executor.drop([1])
    run.thread.start()
    try:
        run.until(2)
    finally:
        run.close()
    assert run.log.order == ["demand 4", "answer 0", "demand 6", "answer 2"]


def test_it_stops_while_a_read_does_not_return(tiny_index: Path) -> None:
    gate = SimpleNamespace(begun=threading.Event(), opened=threading.Event())

    def held(files: SegmentFiles) -> ReadBlock:
        def read_block(read: BlockRead) -> None:
            gate.begun.set()
            gate.opened.wait(20)
            files.read_block(read)

        return read_block

    run = Running(tiny_index, read_block=held)
    run.join((0, (4, 2)))
    run.thread.start()
    try:
        assert gate.begun.wait(20)
        run.executor.stop()
        run.thread.join(20)
        assert not run.thread.is_alive()
    finally:
        gate.opened.set()
        run.close()
    assert not run.found

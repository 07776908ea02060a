"""A searcher with codes and a hot shard on virtual time: scans, swaps, and who waits for whom.

Threads scan codes, one scans the shard, one swaps clusters, as in `searcher/codes/executor.py` and
`searcher/shard/hot_shard.py`. Reads of rows and exact scores are left out: they take the same time
whatever is in the shard.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from bench.simulator.gpu_costs import ShardGpuCosts
from bench.simulator.hot_set_rules import HotSetRule
from bench.simulator.virtual_threads import Phase, VirtualThreads
from schemas.record import ClusterId
from searcher.plan.hot_swaps import Swaps
from searcher.plan.search_times import QUERIES_A_SCAN
from searcher.shard.scans import BATCH_MAX

Int64 = npt.NDArray[np.int64]


class SearcherCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of the CPU and the disk.

    A scan of codes takes `call_us`, `query_us` for each query, `pair_us` for each cluster of each
    query, and `row_us` for each row of these. To load a cluster, each row takes `read_row_us` of
    the disk and `load_row_us` of a core, to verify and convert it. `threads` scan codes on `cores`.
    """

    call_us: float
    query_us: float
    pair_us: float
    row_us: float
    read_row_us: float
    load_row_us: float
    threads: int
    cores: int


class WindowTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What a window took. `search_us`: of each query. `held`: the clusters in the shard at first.

    `is_swapping`: whether clusters entered or left in it.
    """

    search_us: list[float]
    held: frozenset[int]
    is_swapping: bool


class ShardSearcher:
    """Searches windows one after the other, with a shard that a rule changes."""

    def __init__(
        self,
        *,
        rule: HotSetRule,
        hot: Sequence[int],
        row_counts: Int64,
        size_bytes: Int64,
        costs: SearcherCosts,
        gpu: ShardGpuCosts,
    ) -> None:
        """`row_counts`, `size_bytes`: (nlist,) int64, of each cluster, in the shard."""
        self._rule = rule
        self._row_counts = row_counts
        self._size_bytes = size_bytes
        self._costs = costs
        self._gpu = gpu
        self._live = set(hot)
        self._pins: Counter[int] = Counter()
        self._shard, self._swaps = costs.threads, costs.threads + 1
        self._time = VirtualThreads(costs.threads + 2, costs.cores)
        self._leaving: deque[ClusterId] = deque()
        self._entering: deque[ClusterId] = deque()
        self._orders: deque[Swaps] = deque()
        self._has_changed = False
        self.left_bytes = 0
        self.entered_bytes = 0

    def search(
        self, window: Sequence[tuple[ClusterId, ...]], horizon: Mapping[ClusterId, float]
    ) -> WindowTimes:
        """Searches a window whose queries come together; returns when the last one is done."""
        self._rule.add_window(window, horizon)
        held = frozenset(self._live)
        self._has_changed = self._is_swapping
        began_us = self._time.now_us
        ended_us = [began_us] * len(window)
        left = [0]

        def ended(queries: Sequence[int]) -> None:
            left[0] -= 1
            for query in queries:
                ended_us[query] = self._time.now_us

        here = [[one for one in query if one in held] for query in window]
        there = [[one for one in query if one not in held] for query in window]
        waiting = [query for query, clusters in enumerate(there) if clusters]
        asking = [query for query, clusters in enumerate(here) if clusters]
        left[0] = self._scan_shard(here, asking, ended)
        while waiting or left[0]:
            left[0] += self._scan_codes(there, waiting, ended)
            self._time.step()
            self._swap()
        return WindowTimes(
            search_us=[each - began_us for each in ended_us],
            held=held,
            is_swapping=self._has_changed,
        )

    def _scan_codes(
        self,
        there: Sequence[Sequence[ClusterId]],
        waiting: list[int],
        ended: Callable[[Sequence[int]], None],
    ) -> int:
        """Gives `waiting` queries to threads that have nothing to do. Returns how many scans."""
        idle = [thread for thread in range(self._costs.threads) if self._time.is_idle(thread)]
        given = 0
        while waiting and idle:
            share = min(-(-len(waiting) // len(idle)), QUERIES_A_SCAN)
            queries, waiting[:share] = waiting[:share], []
            clusters = np.concatenate([there[query] for query in queries])
            took_us = self._costs.call_us + len(queries) * self._costs.query_us
            took_us += len(clusters) * self._costs.pair_us
            took_us += int(self._row_counts[clusters].sum()) * self._costs.row_us
            self._time.give(idle.pop(0), [Phase(took_us, True)], partial(ended, queries))
            self._begin_substage()
            given += 1
        return given

    def _scan_shard(
        self,
        here: Sequence[Sequence[ClusterId]],
        asking: Sequence[int],
        ended: Callable[[Sequence[int]], None],
    ) -> int:
        """Gives all queries to the thread of the shard. Returns how many scans these are."""
        held_bytes = int(self._size_bytes[list(self._live)].sum())
        batches = [asking[i : i + BATCH_MAX] for i in range(0, len(asking), BATCH_MAX)]
        asked_of = [np.unique(np.concatenate([here[one] for one in batch])) for batch in batches]
        for asked in asked_of:
            self._pins.update(asked.tolist())
        for queries, asked in zip(batches, asked_of, strict=True):
            scan_us = self._gpu.scan_us(int(self._size_bytes[asked].sum()), held_bytes)
            self._time.give(
                self._shard,
                [Phase(self._gpu.launch_us, True), Phase(scan_us, False)],
                partial(self._end_shard_scan, ended, queries, asked.tolist()),
            )
            self._begin_substage()
        return len(batches)

    def _end_shard_scan(
        self, ended: Callable[[Sequence[int]], None], queries: Sequence[int], pinned: list[int]
    ) -> None:
        self._pins.subtract(pinned)
        ended(queries)

    @property
    def _is_swapping(self) -> bool:
        return bool(self._orders or self._leaving or self._entering)

    def _begin_substage(self) -> None:
        if (swaps := self._rule.substage()) is not None:
            self._orders.append(swaps)
            self._has_changed = True
            self._swap()

    def _swap(self) -> None:
        """Goes on with the thread that swaps, if it has nothing to do or to wait for.

        New queries do not find a cluster that leaves; its memory is free when its scans have ended.
        """
        while self._is_swapping and self._time.is_idle(self._swaps):
            if self._leaving:
                cluster = self._leaving[0]
                self._live.discard(cluster)
                if self._pins[cluster]:
                    return
                self._leaving.popleft()
                self.left_bytes += int(self._size_bytes[cluster])
                self._rule.left(cluster)
            elif self._entering:
                self._load(self._entering[0])
            else:
                swaps = self._orders.popleft()
                self._leaving.extend(swaps.leave)
                self._entering.extend(swaps.enter)

    def _load(self, cluster: ClusterId) -> None:
        rows, size_bytes = int(self._row_counts[cluster]), int(self._size_bytes[cluster])

        def end() -> None:
            self._entering.popleft()
            self._live.add(cluster)
            self.entered_bytes += size_bytes
            self._rule.loaded(cluster)

        phases = [
            Phase(rows * self._costs.read_row_us, False),
            Phase(rows * self._costs.load_row_us, True),
            Phase(self._gpu.copy_us(size_bytes), False),
        ]
        self._time.give(self._swaps, phases, end)

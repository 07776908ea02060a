"""Speculative retrieval as advice (HedraRAG 4.3), simulated: the bytes that it saves and costs.

While a text is generated, the clusters of a guess of the next search are announced as horizon. The
plans are the searcher's own, of exact searches and of paged codes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from bench.simulator.search_plane import PlanSimulation
from schemas.record import ClusterId
from searcher.plan.cluster_major import ClusterMajorPlanner
from searcher.plan.farthest_next_use import FarthestNextUse
from searcher.plan.limits import ClusterMajorLimits
from searcher.plan.paged_codes import PagedCodesPlanner, ReadCodes
from searcher.plan.slices import SliceId

BEGIN, WINDOWS_A_TEXT = 2, 8
"""Of a busy searcher: workflows that begin in each window; windows while a text is generated."""

Clusters = Sequence[int]
"""Of a search, nearest first."""


class Root(NamedTuple):
    """A workflow. `later`: what is announced while each text is generated, and then searched."""

    first: Clusters | None
    later: Sequence[tuple[Clusters, Clusters]]


class ExactReads(PlanSimulation):
    """Exact searches. Half of the memory may be what was read ahead, or none of it."""

    def __init__(self, sizes: Sequence[int], budget_bytes: int, *, is_busy: bool) -> None:
        limits = ClusterMajorLimits(
            budget_bytes=budget_bytes,
            read_ahead_bytes=budget_bytes // 8,
            prefetch_bytes=0 if is_busy else budget_bytes // 2,
        )
        by_slice = {SliceId(number): size for number, size in enumerate(sizes)}
        super().__init__(ClusterMajorPlanner(limits, by_slice, FarthestNextUse()), sizes)
        self._queries = 0

    def window(self, searches: Sequence[Clusters], horizon: Mapping[int, int]) -> None:
        """Searches. `horizon`: in how many windows a cluster is needed next."""
        wanted = {self._queries + at: tuple(map(SliceId, one)) for at, one in enumerate(searches)}
        self._queries += len(wanted)
        self.search(wanted, {SliceId(one): windows for one, windows in horizon.items()})

    def announce(self, clusters: Clusters) -> None:
        """Reads as many of `clusters` as may be read before a query wants them."""
        self.read_ahead({SliceId(one): at for at, one in enumerate(clusters, start=1)})


class PagedReads:
    """Codes that exceed memory. What is read ahead is wanted by a query that nobody waits for."""

    def __init__(self, sizes: Sequence[int], budget_bytes: int, *, is_busy: bool) -> None:
        self._planner = PagedCodesPlanner(sizes, budget_bytes)
        self._sizes, self._ahead_bytes = sizes, 0 if is_busy else budget_bytes // 2
        self._queries = self.bytes_read = self.bytes_waited_for = 0

    def window(self, searches: Sequence[Clusters], horizon: Mapping[int, int]) -> None:
        before = self.bytes_read
        self._planner.expect({ClusterId(one): windows for one, windows in horizon.items()})
        for one in searches:
            self._planner.join(self._queries, np.array(one))
            self._queries += 1
        while len(self._planner):
            for step in self._planner.plan():
                if isinstance(step, ReadCodes):
                    self.bytes_read += self._sizes[step.cluster]
        self.bytes_waited_for += self.bytes_read - before

    def announce(self, clusters: Clusters) -> None:
        before = self.bytes_waited_for
        ends = accumulate(self._sizes[one] for one in clusters)
        fitting = [one for one, end in zip(clusters, ends, strict=True) if end <= self._ahead_bytes]
        self.window([fitting] if fitting else [], dict.fromkeys(clusters, 1))
        self.bytes_waited_for = before


PLANES: dict[str, type[ExactReads | PagedReads]] = {"exact": ExactReads, "paged": PagedReads}


def alone(
    plane: str, roots: Iterable[Root], sizes: Sequence[int], budget_bytes: int
) -> list[float]:
    """Runs workflows one after the other; while a text is generated, what is announced is read.

    Returns the bytes of the later searches over those of their clusters: of the reads that a search
    waited for, and of all reads.
    """
    reads, wanted, first_bytes = PLANES[plane](sizes, budget_bytes, is_busy=False), 0, 0
    for root in roots:
        if root.first is not None:
            before = reads.bytes_read
            reads.window([root.first], {})
            first_bytes += reads.bytes_read - before
        for guess, clusters in root.later:
            if guess:
                reads.announce(guess)
            reads.window([clusters], {})
            wanted += sum(sizes[one] for one in clusters)
    return [(total - first_bytes) / wanted for total in (reads.bytes_waited_for, reads.bytes_read)]


def busy(
    plane: str,
    roots: Sequence[Root],
    others: Iterable[Sequence[Clusters]],
    sizes: Sequence[int],
    budget_bytes: int,
) -> float:
    """Runs many workflows in windows, with the searches `others`; nothing is read ahead.

    Returns the bytes of all reads over those of the clusters of all searches.
    """
    due: defaultdict[int, list[tuple[Clusters, Clusters]]] = defaultdict(list)
    for number, root in enumerate(roots):
        began = number // BEGIN
        later = enumerate(root.later, start=1)
        due[began] += [] if root.first is None else [((), root.first)]
        for text, step in later:
            due[began + text * WINDOWS_A_TEXT].append(step)
    reads, questions, wanted = PLANES[plane](sizes, budget_bytes, is_busy=True), iter(others), 0
    for window in range(max(due) + 1):
        searches = [*(clusters for _, clusters in due[window]), *next(questions, ())]
        horizon: dict[int, int] = {}
        for windows in range(WINDOWS_A_TEXT, 0, -1):  # the soonest use counts
            for guess, _ in due[window + windows]:
                horizon |= dict.fromkeys(guess, windows)
        reads.window(searches, horizon)
        wanted += sum(sizes[one] for clusters in searches for one in clusters)
    return reads.bytes_read / wanted

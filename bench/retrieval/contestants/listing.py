"""EdgeRAG and CaGR-RAG as CaGR-RAG's own program searches: "load" cluster after cluster, then
search (section 2.2).

The contestants of `cagr` have our reader, which reads all that a query lacks at once and scores
each cluster as it arrives. The paper's program is plainer: `for centroid in centroid_IDs: ev +=
load(centroid)`, and "once all clusters are loaded and merged into the temporary index, it begins
the vector search" (section 3.1). So here what is cached is taken first, then the missing clusters
are read one after the other, nearest first; nothing is scored before the last is there; and nothing
is read while a query is scored. Grouping, cache policy, evictions, memory and disk format are those
of `cagr`: without prefetching both read the same bytes.

*Prefetching* is a step between two groups: when the last query of a group has been answered, the
clusters of the next group's first query are loaded, also one after the other and never at the cost
of one another, and then the next group begins. So Algorithm 1 prints it (line 37 is a statement of
the loop, after which the cache holds all of them), and so section 3.1 tells it: it is triggered
"immediately after the vector search", and "as a result, all clusters at Query 2 are loaded from the
cache". A thread beside the loop would gain nothing: the next query can be scored only when the same
reads have ended. So on a clock that begins when a question arrives, as ours does, this prefetch
hardly gains: it moves reads from a query to the gap before it.

Left out in the paper's favour: merging (`ev +=`, `index.add(ev)`) copies no vector, clusters are
scored where they were read to; the search goes over all clusters of the query at once, with all
threads; a cluster is read past the page cache with 16 blocks of 1 MiB outstanding, not as a file
from front to back; what the queries of a group still want is evicted last; and encoding and the
search for centroids are not timed, as for all contestants. Pages are verified, as by all that use
our reader.
"""

from __future__ import annotations

from dataclasses import replace
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Literal

import numpy as np

from bench.retrieval.contestant import Contestant, Dataset, Entry, Limits
from bench.retrieval.contestants.cagr import SIMILARITY_MIN, GroupedExecutor, Grouping
from bench.retrieval.contestants.carpool import BusyDisk, Carpool
from schemas.record import ClusterId

if TYPE_CHECKING:
    from searcher.memory.cluster_memory import ClusterMemory

DEPTH = 16
"""Blocks of a cluster's read with the kernel at a time, as the searcher has for what a query waits
for; for prefetches too.
"""


class ReadsEnded(BusyDisk):
    """Also passes on which reads have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: SimpleQueue[ClusterId | None] = SimpleQueue()

    def read(self, cluster: ClusterId, purpose: str, started_us: int, ended_us: int) -> None:
        """Adds the time, and passes on the cluster."""
        super().read(cluster, purpose, started_us, ended_us)
        self.ended.put(cluster)


class Listing(Carpool):
    """Loads, then searches, query by query in groups. Planning the groups of a window is part of
    the measured time.
    """

    def __init__(
        self, name: str, *, grouping: Grouping, prefetch: Literal["none", "after_group"]
    ) -> None:
        super().__init__(
            name,
            horizon_windows=0,
            query_by_query="none",  # of the executor that is replaced
            reads_in_flight_max=DEPTH,
            prefetch_reads_max=DEPTH,
        )
        self._grouping = grouping
        self._prefetch = prefetch
        self._busy: ReadsEnded = ReadsEnded()

    def open(self, dataset: Dataset, limits: Limits) -> None:
        """Opens the plane, and puts another executor in the place of the one that works on its
        memory.

        Raises `ConfigError` where the clusters of a query do not fit into memory together.
        """
        from bench.retrieval.contestants.listing_executor import (
            LoadThenScanExecutor,
            PrefetchingEdgeRag,
            one_after_the_other,
        )
        from carpool.clock import SystemClock
        from carpool.disk.manifest import read_manifest
        from grouper.plan.grouping import grouping_policy
        from grouper.plan.order import group_order

        groups = grouping_policy(
            self._grouping, jaccard_similarity_min=SIMILARITY_MIN, linkage="complete"
        )
        groups.group(np.eye(2))  # so that what it imports is there before the budget is reckoned
        super().open(dataset, limits)
        plane = self._plane
        assert plane is not None and self._thread is not None
        plane.executor.stop()  # from now on its cache passes over what the memory tells it
        self._thread.join()
        check_room(dataset, plane.memory)
        latency_us = read_manifest(dataset.index_dir).read_latency_us
        evictions = PrefetchingEdgeRag(
            {ClusterId(cluster): us for cluster, us in enumerate(latency_us)}
        )
        executor = LoadThenScanExecutor(
            memory=plane.memory,
            planner=one_after_the_other(plane.memory, evictions, dataset.nlist, self._prefetch),
            policy=evictions,
            pool=plane.pool,
            ended=self._busy.ended,
            metrics=self._metrics,
            clock=SystemClock(),
            events=self._busy,
        )
        self._plane = replace(
            plane, executor=GroupedExecutor(executor, groups, group_order("arrival"))
        )
        self._thread = Thread(target=self._search, name="search", daemon=True)
        self._thread.start()


def check_room(dataset: Dataset, memory: ClusterMemory) -> None:
    """Raises `ConfigError` where a query's clusters, which are searched together, are more than the
    memory for clusters holds.
    """
    from carpool.errors import ConfigError

    size_bytes = np.array(
        [memory.arena_bytes(cluster) for cluster in map(ClusterId, range(dataset.nlist))]
    )
    needed_bytes = int(size_bytes[dataset.probes].sum(axis=1).max())
    if needed_bytes > memory.arena_bytes_total:
        raise ConfigError(
            f"the clusters of one query take {needed_bytes} bytes, and there are "
            f"{memory.arena_bytes_total} for clusters: what loads all of them before it searches "
            "cannot run. Give it more memory, lower --nprobe, or leave it out"
        )


def _entry(
    name: str, summary: str, grouping: Grouping, prefetch: Literal["none", "after_group"]
) -> Entry:
    def make() -> Contestant:
        return Listing(name, grouping=grouping, prefetch=prefetch)

    return Entry(name=name, summary=summary, is_exact=True, has_cache_budget=True, make=make)


ENTRIES: tuple[Entry, ...] = (
    _entry(
        "edgerag-listing",
        "as edgerag, as CaGR-RAG's program searches: loads a query's clusters one after the other, "
        "then scores them",
        "per_query",
        "none",
    ),
    _entry(
        "cagr-listing-greedy",
        "as cagr-literal-greedy, loading as CaGR-RAG's program does; prefetches before the next "
        "group begins",
        "greedy",
        "after_group",
    ),
    _entry(
        "cagr-listing-agglomerative",
        "as cagr-literal-agglomerative, loading as CaGR-RAG's program does; prefetches before the "
        "next group begins",
        "agglomerative",
        "after_group",
    ),
)

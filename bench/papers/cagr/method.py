"""What the figures compare: ways to search a batch of queries that arrived together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from carpool.clock import SystemClock
from carpool.disk.index import OpenIndex
from carpool.errors import ConfigError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.executor import Search, SearchGroup
from searcher.local import SearchThread
from searcher.open_exact import open_exact_plane
from searcher.settings import SearcherSettings

WAIT_S = 600.0


class Batch(NamedTuple):
    """Queries that arrived together: `vectors` (n, dim) float32, `probes` (n, nprobe) int32."""

    vectors: npt.NDArray[np.float32]
    probes: npt.NDArray[np.int32]
    top_k: int


class Answer(NamedTuple):
    """The answer to a query of a batch, by its position.

    `rows`: (at most top_k,) int64, best first. `hits`: its clusters in memory when its search
    began; `read_bytes`: read because of it; `own_us`: from the start of its own search, None where
    queries are searched together.
    """

    query: int
    rows: npt.NDArray[np.int64]
    hits: int
    read_bytes: int
    own_us: int | None


class Method(Protocol):
    """A way to search. Counts what it does since it was opened."""

    groups: int
    bytes_read: int
    prefetched_bytes: int

    def search(self, batch: Batch) -> Iterator[Answer]:
        """Yields the answer to each query of `batch` as soon as it is known. Blocks."""
        ...

    def close(self) -> None:
        """Frees everything."""
        ...


class ClusterByCluster:
    """Implements `Method`: Carpool's exact searches, a whole batch together, without a horizon.

    In the bytes of `entries` mean clusters.
    """

    def __init__(self, index: OpenIndex, *, entries: int) -> None:
        sizes = [extent.size_bytes for extent in index.extents]
        self.budget_bytes = max(sum(sizes) * entries // len(sizes), 2 * max(sizes))
        settings = SearcherSettings(budget_bytes=self.budget_bytes)
        self._thread = SearchThread(open_exact_plane(index, settings, Metrics(), SystemClock()))
        self._asked = 0
        self.groups = self.bytes_read = self.prefetched_bytes = 0

    def search(self, batch: Batch) -> Iterator[Answer]:
        """Yields the answer of each query when it is known. Blocks."""
        first = self._asked
        searches = [
            Search(
                key=first + query,
                vector=batch.vectors[query],
                clusters=tuple(map(ClusterId, clusters)),
                top_k=batch.top_k,
            )
            for query, clusters in enumerate(batch.probes.tolist())
        ]
        self._asked += len(searches)
        self.groups += 1
        self._thread.join(SearchGroup(searches=tuple(searches), window=self.groups))
        for _ in searches:
            search, found = self._thread.take(WAIT_S)
            assert found is not None, "no query here has a deadline"
            if found.skipped:
                raise ConfigError(
                    f"clusters {found.skipped} could not be read: {found.errors}; check the index: "
                    "carpool index verify"
                )
            self.bytes_read += found.bytes_read
            hits = sum(probed.tier == "ram" for probed in found.probes)
            yield Answer(search.key - first, found.best.rows, hits, found.bytes_read, None)

    def close(self) -> None:
        """Ends the search thread and frees the memory."""
        self._thread.close()

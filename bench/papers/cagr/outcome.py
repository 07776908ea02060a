"""What a run measured: arrays by query in the order of arrival, and figures from them."""

from __future__ import annotations

from typing import cast

import msgspec
import numpy as np
import numpy.typing as npt

from bench.core.machine import Machine, Revision
from bench.core.spread import Spread, spread
from bench.papers.cagr.plan import RunSpec
from bench.retrieval.cells import agrees

Ints = tuple[int, ...]
Floats = npt.NDArray[np.float64]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A value for each query, query 1 first.

    `batch`, `group`: their numbers. `encode_us`: embedding and probing it alone; `load_us`,
    `search_us`: waiting for reads and scoring, from the start of its own search; meaningless for
    `carpool`, which searches all queries of a batch together. `batch_us`: from the arrival of its
    batch to its result. `hits`: its clusters in memory when its search began. `read_bytes`: of
    clusters read because of it; `probed_bytes`: of all its clusters.
    """

    batch: Ints
    group: Ints
    encode_us: Ints
    load_us: Ints
    search_us: Ints
    batch_us: Ints
    hits: Ints
    read_bytes: Ints
    probed_bytes: Ints

    def query_ms(self) -> Floats:
        """The paper's clock, section 4.1: from encoding the query to its top-k."""
        total_us = np.array([self.encode_us, self.load_us, self.search_us], dtype=np.float64)
        return np.asarray(total_us.sum(axis=0) / 1e3, dtype=np.float64)

    def batch_ms(self) -> Floats:
        """The asker's clock: from the arrival of the batch to the query's top-k."""
        return np.array(self.batch_us) / 1e3

    def hit_shares(self, nprobe: int) -> Floats:
        """The share of its clusters that each query found in memory: the cache hit ratio."""
        return np.array(self.hits) / nprobe

    def unread_shares(self) -> Floats:
        """The share of its clusters' bytes in memory, or read because of another query."""
        shares = 1 - np.array(self.read_bytes) / np.array(self.probed_bytes)
        return np.asarray(shares, dtype=np.float64)


class RunTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Of the measured part. `bytes_read` by our count, `kernel_bytes` by the kernel's.

    `used_bytes`: in memory after each query. `prefetch_us`: between groups, on no query's own
    clock. `grouping_us`: of all batches.
    """

    duration_us: int
    bytes_read: int
    prefetched_bytes: int
    kernel_bytes: int
    used_bytes_mean: int
    used_bytes_max: int
    prefetch_us: int
    grouping_us: int
    groups: int
    warm_up_queries: int
    warm_up_us: int

    @property
    def bytes_agree(self) -> bool:
        """Whether our count and the kernel's agree within 2 %, or 4 MiB."""
        return agrees(self.kernel_bytes, self.bytes_read)


class FigureRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run, and where it was made. `limit`: of the cache."""

    spec: RunSpec
    index_version: str
    limit: str
    started: str
    machine: Machine
    revision: Revision | None
    batch_sizes: Ints
    totals: RunTotals
    series: Series

    @property
    def queries(self) -> int:
        """Measured queries."""
        return len(self.series.batch)

    @property
    def query_ms(self) -> Spread | None:
        """The spread on the paper's clock; None for `carpool`, whose queries share their time."""
        return None if self.spec.method == "carpool" else spread(self.series.query_ms())

    @property
    def batch_ms(self) -> Spread:
        """The spread on the asker's clock."""
        return cast(Spread, spread(self.series.batch_ms()))

    @property
    def encode_ms(self) -> float:
        """The mean time of embedding and probing a query alone."""
        return float(np.mean(self.series.encode_us)) / 1e3

    @property
    def hit_share(self) -> float:
        """The mean share of clusters found in memory."""
        return float(self.series.hit_shares(self.spec.nprobe).mean())

    @property
    def mb_a_query(self) -> float:
        """MB read from disk a query, prefetches included."""
        return self.totals.bytes_read / self.queries / 1e6

    @property
    def queries_per_s(self) -> float:
        """Queries answered a second, encoding included."""
        return self.queries / max(self.totals.duration_us, 1) * 1e6

"""What a run measured: arrays by query in the order of arrival, and what is computed from them."""

from __future__ import annotations

from typing import cast

import msgspec
import numpy as np
import numpy.typing as npt

from bench.core.machine import Machine, Revision
from bench.core.spread import Spread, spread
from bench.papers.cagr.plan import RunSpec

SCHEMA_VERSION = 1
BYTES_OFF_MAX_SHARE = 0.02
BYTES_OFF_MAX = 4 << 20

Ints = tuple[int, ...]
Floats = npt.NDArray[np.float64]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A value for each query, query 1 first.

    `batch`: which batch it came in; `group`: which group of the run. `encode_us`: embedding and
    probing it, alone; `load_us`, `search_us`: waiting for reads and scoring, from the beginning of
    its own search; meaningless for `carpool`, which searches all queries of a batch at once.
    `batch_us`: from the arrival of its batch to its result. `hits`: of its clusters, those in
    memory when its turn came. `read_bytes`: of the clusters that were read for its sake;
    `probed_bytes`: of all its clusters.
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
        """The paper's clock, section 4.1: from encoding the query to its top-k. What others wait
        for is not in it.
        """
        total_us = np.array([self.encode_us, self.load_us, self.search_us], dtype=np.float64).sum(
            axis=0
        )
        return np.asarray(total_us / 1e3, dtype=np.float64)

    def batch_ms(self) -> Floats:
        """The asker's clock: from the arrival of the batch to the query's top-k; encoding,
        grouping, waiting included.
        """
        return np.array(self.batch_us) / 1e3

    def hit_shares(self, nprobe: int) -> Floats:
        """The share of its clusters that each query found in memory: the paper's cache hit
        ratio.
        """
        return np.array(self.hits) / nprobe

    def unread_shares(self) -> Floats:
        """The share of its clusters' bytes that no read for its sake brought: in memory, or read
        for another one.
        """
        read, probed = (
            np.array(self.read_bytes, dtype=np.float64),
            np.array(self.probed_bytes, dtype=np.float64),
        )
        return np.asarray(1 - read / probed, dtype=np.float64)


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Of the measured part. `bytes_read` by our count, `kernel_bytes` by the kernel's.
    `held_bytes`: in memory, mean and most, looked at after each query. `prefetch_us`: between
    groups, on no query's own clock. `grouping_us`: of all batches.
    """

    duration_us: int
    bytes_read: int
    prefetched_bytes: int
    kernel_bytes: int
    held_bytes: int
    held_bytes_max: int
    prefetch_us: int
    grouping_us: int
    groups: int
    warm_up_queries: int
    warm_up_us: int

    @property
    def bytes_agree(self) -> bool:
        """Whether our count and the kernel's agree within 2 %, or 4 MiB."""
        off = abs(self.kernel_bytes - self.bytes_read)
        return off <= max(BYTES_OFF_MAX, BYTES_OFF_MAX_SHARE * self.bytes_read)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run, where and on what it was made. `limit`: what the cache held at most."""

    schema_version: int
    spec: RunSpec
    index_version: str
    limit: str
    started: str
    machine: Machine
    revision: Revision | None
    batch_sizes: Ints
    totals: Totals
    series: Series

    @property
    def queries(self) -> int:
        """Measured queries."""
        return len(self.series.batch)

    @property
    def query_ms(self) -> Spread | None:
        """The spread on the paper's clock, None where a query has no time of its own."""
        return None if self.spec.method == "carpool" else spread(self.series.query_ms())

    @property
    def batch_ms(self) -> Spread:
        """The spread on the asker's clock."""
        return cast(Spread, spread(self.series.batch_ms()))

    @property
    def encode_ms(self) -> float:
        """The mean time of embedding and probing a query alone: a query's on both clocks, a batch's
        on the asker's.
        """
        return float(np.mean(self.series.encode_us)) / 1e3

    @property
    def hit_share(self) -> float:
        """The mean share of clusters found in memory."""
        return float(self.series.hit_shares(self.spec.nprobe).mean())

    @property
    def mb_a_query(self) -> float:
        """MB read off the disk a query, for whatever reason."""
        return self.totals.bytes_read / self.queries / 1e6

    @property
    def queries_per_s(self) -> float:
        """Queries answered a second, encoding included."""
        return self.queries / max(self.totals.duration_us, 1) * 1e6

"""A run of `carpool bench search` as it was asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from bench.baselines.contestant import ContestantEntry, Limits
from bench.data.clusters import clusters_bytes, vectors_bytes
from bench.retrieval.cgroup import LimitedBy
from carpool.disk.index import OpenIndex
from carpool.errors import ConfigError

BASELINES = ("carpool-exact", "faiss-ondisk")
"""Ratios are to the first of these that takes part."""
HOUR_PRICE = 0.1
"""Dollars an hour for the machine: about what 2 cores and 8 GB cost in a cloud."""
DISK_S = 0.5
"""Seconds at each of five depths, three times a block."""


class SearchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. `indexes`: one, or one for each seed.

    Either `memory_share` limits the whole process, as a share of the bytes of the vectors, by
    `limited_by`; or `cache_share` limits the clusters in memory, resident or being read, as a share
    of the bytes of all clusters on disk, which contestants keep themselves. `disk_s`: how long the
    disk is measured at each depth.
    """

    indexes: tuple[Path, ...]
    contestants: tuple[str, ...]
    windows: tuple[int, ...]
    seeds: int
    queries: int
    nprobe: int
    top_k: int = 10
    memory_share: float | None
    cache_share: float | None = None
    limited_by: LimitedBy
    threads: int = len(os.sched_getaffinity(0))
    timeout_s: float
    work: Path
    hour_price: float = HOUR_PRICE
    disk_s: float = DISK_S

    def __post_init__(self) -> None:
        """Raises `ConfigError` unless exactly one thing is limited."""
        if (self.memory_share is None) == (self.cache_share is None):
            raise ConfigError(
                "either the whole process is limited or only its memory for clusters: give "
                "--memory or --cache, one of the two"
            )

    @property
    def baseline(self) -> str:
        """The contestant that ratios are to."""
        return next((name for name in BASELINES if name in self.contestants), self.contestants[0])

    @property
    def is_memory_limited(self) -> bool:
        """Whether the kernel limits whole processes."""
        return self.limited_by != "none" and self.cache_share is None

    def index_of(self, seed: int) -> Path:
        """Returns the index of a seed."""
        return self.indexes[seed if len(self.indexes) > 1 else 0]

    def budget_bytes(self, view: OpenIndex) -> int:
        """Returns the limit in bytes for an index; the static oracle keeps as much."""
        if self.cache_share is not None:
            return int(self.cache_share * clusters_bytes(view))
        assert self.memory_share is not None
        return int(self.memory_share * vectors_bytes(view))

    def limits(self, view: OpenIndex, entry: ContestantEntry, window: int) -> Limits:
        """Returns what a contestant may use."""
        budget_bytes = self.budget_bytes(view)
        is_cache = self.cache_share is not None
        return Limits(
            memory_bytes=budget_bytes if entry.is_limited and not is_cache else None,
            cache_bytes=budget_bytes if is_cache else None,
            threads=self.threads,
            window=window,
        )


def order_of(contestants: Sequence[str], seed: int, window: int) -> list[str]:
    """Returns the contestants of a block in a random order of its own.

    So no contestant always runs after the same one, or at the same place. Pure.
    """
    order = np.random.default_rng((seed, window)).permutation(len(contestants))
    return [contestants[at] for at in order]


def check_cache_budgets(entries: Sequence[ContestantEntry]) -> None:
    """Raises `ConfigError` for contestants that cannot keep a cache budget."""
    unable = [entry.name for entry in entries if not entry.has_cache_budget]
    if unable:
        raise ConfigError(
            f"--cache gives every contestant's cache the same bytes, and {', '.join(unable)} "
            "cannot be limited so: a library, or the kernel's page cache, decides what it keeps. "
            "Leave them out, or limit whole processes with --memory"
        )

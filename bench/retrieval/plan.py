"""A run of `carpool bench search` as it was asked for: who, on what, how often, and within which
limits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from bench.retrieval.cgroup import HeldBy
from bench.retrieval.contestant import Entry, Float32, Limits
from bench.retrieval.dataset import IndexView
from bench.retrieval.measure import OpenLoopPlan
from carpool.errors import ConfigError

DISK_S = 0.5
"""At three sizes, five depths and three times a block: some 25 seconds, with what is under way when
a time is up.
"""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it was asked for. `indexes`: one, or one for each seed.

    One of two things is limited, the other share is None. `memory_share`: a contestant's whole
    process, as a share of the bytes of the vectors, held by `held_by`. `cache_share`: the clusters
    in its memory, kept or being read, as a share of the bytes of all clusters on disk; contestants
    hold that themselves, and `held_by` only watches the process.

    `empty_page_cache`: all of it, as root can, and not only the files of the run; `disk_s`: how
    long the disk is measured at each size and depth.
    """

    indexes: tuple[Path, ...]
    contestants: tuple[str, ...]
    windows: tuple[int, ...]
    seeds: int
    queries: int
    nprobe: int
    top_k: int
    memory_share: float | None
    held_by: HeldBy
    threads: int
    open_loop: OpenLoopPlan | None
    timeout_s: float
    out: Path
    work: Path
    empty_page_cache: bool = True
    disk_s: float = DISK_S
    cache_share: float | None = None

    def __post_init__(self) -> None:
        """Raises `ConfigError` unless one thing is limited."""
        if (self.memory_share is None) == (self.cache_share is None):
            raise ConfigError(
                "either the whole process is limited or only its memory for clusters: give "
                "--memory or --cache, one of the two"
            )

    @property
    def is_memory_held(self) -> bool:
        """Whether the kernel holds whole processes to a limit."""
        return self.held_by != "none" and self.cache_share is None

    def budget_bytes(self, view: IndexView) -> int:
        """Returns what is limited, in bytes of an index; as much, and no more, the static oracle
        keeps.
        """
        if self.cache_share is not None:
            return int(self.cache_share * int(view.cluster_bytes.sum()))
        assert self.memory_share is not None
        return int(self.memory_share * view.vectors_bytes)

    def limits(self, view: IndexView, chosen: Entry, window: int) -> Limits:
        """Returns what a contestant may take."""
        budget_bytes = self.budget_bytes(view)
        if self.cache_share is not None:
            return Limits(
                memory_bytes=None, cache_bytes=budget_bytes, threads=self.threads, window=window
            )
        memory_bytes = budget_bytes if chosen.is_limited else None
        return Limits(memory_bytes=memory_bytes, threads=self.threads, window=window)


def settings_id(plan: Plan, versions: Sequence[str], questions: Sequence[Float32]) -> str:
    """Returns what changes with anything that would make cells incomparable; contestants, windows
    and seeds may be added.
    """
    facts = msgspec.structs.asdict(plan)
    for name in ("contestants", "windows", "seeds", "timeout_s", "out", "work", "indexes"):
        del facts[name]
    digest = hashlib.sha256(msgspec.json.encode([facts, list(versions)]))
    for vectors in questions:
        digest.update(np.ascontiguousarray(vectors).data)
    return digest.hexdigest()[:16]


def check_cache_budgets(entries: Sequence[Entry]) -> None:
    """Raises `ConfigError` for contestants that cannot keep to a cache budget."""
    unable = [chosen.name for chosen in entries if not chosen.has_cache_budget]
    if unable:
        raise ConfigError(
            f"--cache gives every contestant's cache the same bytes, and {', '.join(unable)} "
            "cannot be held to that: a library, or the kernel's page cache, keeps what it likes. "
            "Leave them out, or limit whole processes with --memory"
        )

"""Opens exact searches: memory for clusters, the reads that fill it, and an executor over both."""

from __future__ import annotations

from dataclasses import dataclass

from carpool.clock import Clock
from carpool.disk.index import OpenIndex
from carpool.errors import ConfigError
from carpool.telemetry.metrics import Metrics
from searcher.cluster_major_executor import ClusterMajorExecutor
from searcher.memory.cluster_memory import ClusterMemory, SliceRead
from searcher.passages.open import PASSAGE_BUFFERS_BYTES
from searcher.plan.cluster_major import ClusterMajorPlanner
from searcher.plan.cut import Slices
from searcher.plan.farthest_next_use import FarthestNextUse
from searcher.plan.limits import OVERTAKE_US, ClusterMajorLimits
from searcher.plan.slices import SliceId
from searcher.scoring.pool import ScoringPool
from searcher.settings import SearcherSettings
from searcher.store.arena import BLOCK_BYTES_MAX, Arena, choose_block_bytes
from searcher.store.reader import OpenReads, Reader
from searcher.store.waker import Waker

READ_AHEAD_SHARE = 8
PREFETCH_SHARE = 32
READ_AHEAD_BYTES_MAX = 96 << 20
"""Twice the bytes with the kernel: as much is scored, or waits for that."""
SLICE_BYTES_MAX = 8 << 20
"""Smaller: more bookkeeping for each byte. Larger: the disk idles at the ends of windows."""


@dataclass(frozen=True, kw_only=True)
class ExactOptions:
    """How exact searches use their memory; tests and benchmarks vary it.

    The first three: see `ClusterMajorLimits`; None: a share of the budget.
    `slice_bytes_max`: 0 cuts no cluster. `fills_memory`: False takes memory from the system only
    when it is used.
    """

    read_ahead_bytes: int | None = None
    prefetch_bytes: int | None = None
    overtake_us: int = OVERTAKE_US
    slice_bytes_max: int = SLICE_BYTES_MAX
    fills_memory: bool = True


EXACT_WITH_CODES = ExactOptions(prefetch_bytes=0, slice_bytes_max=2 << 20, fills_memory=False)
"""Of exact searches in the memory that codes leave."""


@dataclass(frozen=True, kw_only=True)
class ExactPlane:
    """Implements `searcher.build.SearchPlane`: whole clusters are read and scored."""

    memory: ClusterMemory
    planner: ClusterMajorPlanner
    executor: ClusterMajorExecutor
    pool: ScoringPool
    waker: Waker

    def close(self) -> None:
        """Ends reads and threads."""
        self.pool.close()
        if self.memory.close():
            self.waker.close()


def exact_bytes_min(index: OpenIndex) -> int:
    """Returns the least memory that codes must leave: the largest slice, in blocks."""
    slices = Slices(index.extents, index.layout, EXACT_WITH_CODES.slice_bytes_max)
    return max(extent.size_bytes for extent in slices.extents) + BLOCK_BYTES_MAX


def open_exact_plane(
    index: OpenIndex,
    settings: SearcherSettings,
    metrics: Metrics,
    clock: Clock,
    *,
    open_reads: OpenReads | None = None,
    options: ExactOptions = ExactOptions(),
) -> ExactPlane:
    """Returns an executor in `budget_bytes` of memory. `open_reads`: see `open_search_plane`.

    Raises `ConfigError`.
    """
    slices = Slices(index.extents, index.layout, options.slice_bytes_max)
    arena = _open_arena(index, slices, settings.budget_bytes, options)
    waker = Waker()
    reader: Reader[SliceRead] = Reader(
        index.segment_paths,
        arena,
        settings,
        waker,
        clock,
        sums=index.row_sums,
        verifies_aside=True,
        open_reads=open_reads,
    )
    memory = ClusterMemory(
        layout=index.layout, extents=slices.extents, reader=reader, metrics=metrics, clock=clock
    )
    planner = _planner(memory, len(slices.extents), options)
    pool = ScoringPool(settings.threads)
    executor = ClusterMajorExecutor(
        memory=memory,
        slices=slices,
        planner=planner,
        pool=pool,
        waker=waker,
        metrics=metrics,
        clock=clock,
    )
    return ExactPlane(memory=memory, planner=planner, executor=executor, pool=pool, waker=waker)


def _planner(memory: ClusterMemory, slices: int, options: ExactOptions) -> ClusterMajorPlanner:
    budget_bytes, prefetch_bytes = memory.arena_bytes_total, options.prefetch_bytes
    ahead_bytes = options.read_ahead_bytes
    if ahead_bytes is None:
        ahead_bytes = min(budget_bytes // READ_AHEAD_SHARE, READ_AHEAD_BYTES_MAX)
    limits = ClusterMajorLimits(
        budget_bytes=budget_bytes,
        read_ahead_bytes=ahead_bytes,
        prefetch_bytes=budget_bytes // PREFETCH_SHARE if prefetch_bytes is None else prefetch_bytes,
        overtake_us=options.overtake_us,
    )
    sizes = {number: memory.arena_bytes(number) for number in map(SliceId, range(slices))}
    return ClusterMajorPlanner(limits, sizes, FarthestNextUse())


def _open_arena(
    index: OpenIndex, slices: Slices, budget_bytes: int, options: ExactOptions
) -> Arena:
    sizes = [extent.size_bytes for extent in slices.extents]
    block_bytes = choose_block_bytes(index.layout.page_bytes, sum(sizes) // len(sizes))
    _check_budget(slices, budget_bytes, block_bytes)
    try:
        arena = Arena(budget_bytes, block_bytes)
        arena.fill(sum(sizes) if options.fills_memory else 0)
        return arena
    except OSError as error:
        raise ConfigError(
            f"[searcher] budget_bytes leaves {budget_bytes} for clusters, and this machine does "
            f"not give as much memory: {error.strerror}. Set it lower; the process needs about 100 "
            "MB more"
        ) from error


def _check_budget(slices: Slices, budget_bytes: int, block_bytes: int) -> None:
    largest = max(slices.extents, key=lambda extent: extent.size_bytes)
    needed_bytes = -(-largest.size_bytes // block_bytes) * block_bytes
    if needed_bytes > budget_bytes // block_bytes * block_bytes:
        raise ConfigError(
            f"[searcher] budget_bytes leaves {budget_bytes} for clusters, and cluster "
            f"{largest.cluster} alone, or the part of it that is read as one, takes "
            f"{needed_bytes}: a query that probes it could never be answered. Set budget_bytes to "
            f"at least {needed_bytes + PASSAGE_BUFFERS_BYTES} (several times that to be of use), "
            "or rebuild the index with more clusters (--nlist)"
        )

"""Opens the parts of the searcher: index, memory, scoring threads and executor."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from carpool.clock import Clock
from carpool.disk.index import OpenIndex, open_index
from carpool.disk.manifest import Manifest
from carpool.disk.settings import IndexSettings
from carpool.errors import ConfigError
from carpool.telemetry.metrics import Metrics
from searcher.cluster_major_executor import ClusterMajorExecutor
from searcher.executor import Executor
from searcher.executor_by_mode import ExecutorByMode
from searcher.memory.arena import BLOCK_BYTES_MAX, Arena, choose_block_bytes
from searcher.memory.cluster_memory import ClusterMemory, FlightLimits
from searcher.passages.open import PASSAGE_BUFFERS_BYTES, open_passages
from searcher.passages.passage_reader import PassageReader
from searcher.plan.cluster_major import ClusterMajorPlanner
from searcher.plan.cut import Slices
from searcher.plan.farthest_next_use import FarthestNextUse
from searcher.plan.limits import OVERTAKE_US, ClusterMajorLimits
from searcher.plan.slices import SliceId
from searcher.scoring.pool import ScoringPool
from searcher.settings import SearcherSettings
from searcher.store.files import SegmentFiles
from searcher.store.page_reads import PageReads, ThreadPageReads
from searcher.store.reads_in_flight import ReadLimits
from searcher.store.waker import Waker

READ_AHEAD_SHARE = 8
PREFETCH_SHARE = 32
READ_AHEAD_BYTES_MAX = 96 << 20
"""Twice the bytes with the kernel: as much is scored, or waits for that."""
SLICE_BYTES_MAX = 8 << 20
"""Smaller: more bookkeeping for each byte. Larger: the disk idles at the ends of windows."""
IN_FLIGHT_BYTES = 48 << 20
"""Less: a virtual disk, which completes reads in batches, idles, or it does during a sub-stage: new
reads begin after it. More: urgent reads wait.
"""
AHEAD_MAX = 2
"""Slices with the kernel for later queries; more would delay the reads of a new query."""
READ_THREADS = 32
"""Reads of up to 1 MiB of clusters at a time."""
CLOSE_TIMEOUT_S = 0.5


@dataclass(frozen=True, kw_only=True)
class ExactOptions:
    """How exact searches use their memory and the disk; benchmarks vary it.

    `read_ahead_bytes` and `prefetch_bytes`: see `ClusterMajorLimits`; None: a share of the budget.
    `slice_bytes_max`: 0 cuts no cluster. `in_flight_bytes` and `ahead_max`: see `FlightLimits`.
    `fills_memory`: False takes memory from the system only when it is used.
    """

    read_ahead_bytes: int | None = None
    prefetch_bytes: int | None = None
    slice_bytes_max: int = SLICE_BYTES_MAX
    in_flight_bytes: int = IN_FLIGHT_BYTES
    ahead_max: int = AHEAD_MAX
    fills_memory: bool = True


BESIDE_CODES = ExactOptions(prefetch_bytes=0, slice_bytes_max=2 << 20, fills_memory=False)
"""Of exact searches in the memory that codes leave."""


@dataclass(frozen=True, kw_only=True)
class PlaneParts:
    """The parts of an executor. `memory` is empty; `waker` wakes the thread that uses it."""

    index: OpenIndex
    options: ExactOptions
    slices: Slices
    memory: ClusterMemory
    waker: Waker
    pool: ScoringPool
    metrics: Metrics
    clock: Clock

    def size_bytes(self) -> dict[SliceId, int]:
        """Returns what each slice takes in memory."""
        numbers = map(SliceId, range(len(self.slices.extents)))
        return {number: self.memory.arena_bytes(number) for number in numbers}


OpenReads = Callable[[SegmentFiles, Waker], PageReads]

OpenExecutor = Callable[[PlaneParts], Executor]


class SearchPlane(Protocol):
    """An executor over the clusters of an index, without Kafka and passages."""

    @property
    def executor(self) -> Executor:
        """The executor."""
        ...

    def close(self) -> None:
        """Ends reads and threads, after `executor.run` has returned. Blocks up to half a second."""
        ...


@dataclass(frozen=True, kw_only=True)
class ExactPlane:
    """Implements `SearchPlane`: whole clusters are read and scored."""

    memory: ClusterMemory
    executor: Executor
    pool: ScoringPool
    files: SegmentFiles
    waker: Waker

    def close(self) -> None:
        """Ends reads and threads."""
        self.pool.close()
        if self.memory.close(CLOSE_TIMEOUT_S):
            self.files.close()
            self.waker.close()


@dataclass(frozen=True, kw_only=True)
class BothPlanes:
    """Implements `SearchPlane`: codes for most searches, whole clusters for exact ones."""

    codes: SearchPlane
    exact: ExactPlane
    executor: Executor

    def close(self) -> None:
        """Closes both."""
        self.codes.close()
        self.exact.close()


@dataclass(frozen=True, kw_only=True)
class OpenSearcher:
    """An index that is ready to be searched."""

    manifest: Manifest
    plane: SearchPlane
    passages: PassageReader

    @property
    def executor(self) -> Executor:
        """The executor of the plane."""
        return self.plane.executor

    @property
    def scans_codes(self) -> bool:
        """Whether codes are scanned; else every search is exact."""
        return isinstance(self.plane, BothPlanes)

    def close(self) -> None:
        """Closes the plane and the passages. Blocks for up to half a second each."""
        self.plane.close()
        self.passages.close()


def open_searcher(
    settings: SearcherSettings,
    index: IndexSettings,
    metrics: Metrics,
    clock: Clock,
    *,
    open_reads: OpenReads | None = None,
) -> OpenSearcher:
    """Opens the index, its search plane and passages; does not keep the centroids. Blocks.

    Raises `ConfigError` where there is no index, a cluster exceeds the budget or O_DIRECT is
    refused, `CorruptionError` where the index is damaged.
    """
    opened = open_index(Path(index.dir))
    try:
        return search_and_passages(opened, settings, metrics, clock, open_reads=open_reads)
    finally:
        opened.close()


def search_and_passages(
    index: OpenIndex,
    settings: SearcherSettings,
    metrics: Metrics,
    clock: Clock,
    *,
    open_reads: OpenReads | None = None,
) -> OpenSearcher:
    """Returns the search plane of an open index, and its passages. Blocks.

    The buffers of passages come first; the rest of `budget_bytes` is for the plane. Raises as
    `open_search_plane`.
    """
    passages = open_passages(index.documents.table, settings, metrics, clock)
    try:
        left_bytes = settings.budget_bytes - PASSAGE_BUFFERS_BYTES
        settings = msgspec.structs.replace(settings, budget_bytes=left_bytes)
        plane = open_search_plane(index, settings, metrics, clock, open_reads=open_reads)
    except BaseException:
        passages.close()
        raise
    metrics.searcher.budget_bytes.inc(PASSAGE_BUFFERS_BYTES)
    return OpenSearcher(manifest=index.manifest, plane=plane, passages=passages)


def uses_horizon(index_dir: Path, settings: SearcherSettings) -> bool:
    """Returns whether it helps to know the clusters of later windows.

    It saves reads where codes do not fit. Opens the index and closes it again. Raises as
    `open_searcher`.
    """
    index = open_index(index_dir)
    try:
        if not _may_scan_codes(index, settings):
            return True
        from searcher.codes.open import choose_codes

        chosen = choose_codes(index, bytes_for_codes(index, settings))
        return chosen is None or chosen.paged_bytes is not None
    finally:
        index.close()


def cluster_major_planner(
    parts: PlaneParts, *, overtake_us: int = OVERTAKE_US
) -> ClusterMajorPlanner:
    """Returns the planner of the searcher's executor."""
    budget_bytes, ahead_bytes = parts.memory.arena_bytes_total, parts.options.read_ahead_bytes
    prefetch_bytes = parts.options.prefetch_bytes
    if ahead_bytes is None:
        ahead_bytes = min(budget_bytes // READ_AHEAD_SHARE, READ_AHEAD_BYTES_MAX)
    limits = ClusterMajorLimits(
        budget_bytes=budget_bytes,
        read_ahead_bytes=ahead_bytes,
        prefetch_bytes=budget_bytes // PREFETCH_SHARE if prefetch_bytes is None else prefetch_bytes,
        overtake_us=overtake_us,
    )
    return ClusterMajorPlanner(limits, parts.size_bytes(), FarthestNextUse())


def cluster_major(parts: PlaneParts, planner: ClusterMajorPlanner | None = None) -> Executor:
    """Returns the searcher's executor: each cluster is read once for all queries in progress.

    `planner`: None for that of `cluster_major_planner`.
    """
    return ClusterMajorExecutor(
        memory=parts.memory,
        slices=parts.slices,
        planner=planner if planner is not None else cluster_major_planner(parts),
        pool=parts.pool,
        waker=parts.waker,
        metrics=parts.metrics,
        clock=parts.clock,
    )


def open_search_plane(
    index: OpenIndex,
    settings: SearcherSettings,
    metrics: Metrics,
    clock: Clock,
    *,
    open_reads: OpenReads | None = None,
) -> SearchPlane:
    """Returns the executor that the index and the settings allow, and its parts. Blocks.

    With codes, where the index has them and `budget_bytes` holds enough of them; what they leave is
    for exact searches. Without, the whole budget is for clusters, and every search is exact.
    `open_reads` is for tests and benchmarks of exact searches. Raises `ConfigError`, and
    `CorruptionError` where checksums of codes are damaged.
    """
    chosen = None
    if _may_scan_codes(index, settings):
        # FAISS takes 30 MB, and an exact search does not need it.
        from searcher.codes.open import choose_codes, log_choice, open_codes_plane
        from searcher.open_shard import open_shard

        codes_bytes = settings.budget_bytes - _exact_bytes_min(index)
        chosen = choose_codes(index, codes_bytes)
        log_choice(index, chosen, codes_bytes)
    if chosen is None:
        _check_no_shard(settings)
        return open_exact_plane(index, settings, metrics, clock, open_reads=open_reads)
    exact_bytes = settings.budget_bytes - chosen.memory_bytes
    exact = open_exact_plane(
        index,
        msgspec.structs.replace(settings, budget_bytes=exact_bytes),
        metrics,
        clock,
        open_reads=open_reads,
        options=BESIDE_CODES,
    )
    try:
        by_codes = open_codes_plane(
            index,
            chosen,
            settings,
            metrics,
            clock,
            lambda codes: open_shard(index, codes, settings, metrics),
        )
    except BaseException:
        exact.close()
        raise
    memory_bytes = chosen.memory_bytes + exact.memory.arena_bytes_total
    metrics.searcher.budget_bytes.set(memory_bytes)
    return BothPlanes(
        codes=by_codes,
        exact=exact,
        executor=ExecutorByMode(by_codes.executor, exact.executor, metrics),
    )


def bytes_for_codes(index: OpenIndex, settings: SearcherSettings) -> int:
    """Returns what passages and exact searches leave of `budget_bytes` for codes."""
    return settings.budget_bytes - PASSAGE_BUFFERS_BYTES - _exact_bytes_min(index)


def _may_scan_codes(index: OpenIndex, settings: SearcherSettings) -> bool:
    return settings.search_mode != "exact" and bool(index.manifest.codes)


def _check_no_shard(settings: SearcherSettings) -> None:
    if settings.shard != "none":
        raise ConfigError(
            f'[searcher] shard = "{settings.shard}" needs codes, and this searcher has none: a hot '
            'shard saves scans of codes. Set shard = "none", or build the index with codes '
            "(`carpool index build --codes rabitq4`), give them enough budget_bytes, and set "
            'search_mode to "default" or "margin"'
        )


def _exact_bytes_min(index: OpenIndex) -> int:
    """The least memory of exact searches beside codes: the largest slice, in blocks."""
    slices = Slices(index.extents, index.layout, BESIDE_CODES.slice_bytes_max)
    return max(extent.size_bytes for extent in slices.extents) + BLOCK_BYTES_MAX


def open_exact_plane(
    index: OpenIndex,
    settings: SearcherSettings,
    metrics: Metrics,
    clock: Clock,
    *,
    open_reads: OpenReads | None = None,
    executor: OpenExecutor = cluster_major,
    options: ExactOptions = ExactOptions(),
) -> ExactPlane:
    """Returns memory of `budget_bytes`, the reads that fill it, and an executor over both.

    Raises `ConfigError`.
    """
    slices = Slices(index.extents, index.layout, options.slice_bytes_max)
    with ExitStack() as opened:
        files = SegmentFiles(index.segment_paths, settings.direct_io)
        opened.callback(files.close)
        waker = Waker()
        opened.callback(waker.close)
        arena = _open_arena(index, slices, settings.budget_bytes, options)
        reads = (
            open_reads(files, waker)
            if open_reads is not None
            else ThreadPageReads(files, waker, clock, READ_THREADS)
        )
        opened.pop_all()
    memory = ClusterMemory(
        layout=index.layout,
        extents=slices.extents,
        paths=[str(path) for path in index.segment_paths],
        sums=index.row_sums,
        arena=arena,
        reads=reads,
        waker=waker,
        limits=ReadLimits(timeout_us=settings.read_timeout_ms * 1_000),
        flight=FlightLimits(in_flight_bytes=options.in_flight_bytes, ahead_max=options.ahead_max),
        metrics=metrics,
        clock=clock,
    )
    parts = PlaneParts(
        index=index,
        options=options,
        slices=slices,
        memory=memory,
        waker=waker,
        pool=ScoringPool(settings.scoring_threads or len(os.sched_getaffinity(0))),
        metrics=metrics,
        clock=clock,
    )
    return ExactPlane(
        memory=memory, executor=executor(parts), pool=parts.pool, files=files, waker=waker
    )


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
            "MB beside it"
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

"""Opening what the searcher works on: index, reader, cache, executor; everything that can be wrong is said here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from carpool.clock import Clock
from carpool.disk.documents import DocumentStore
from carpool.disk.index import open_index
from carpool.disk.manifest import Manifest
from carpool.disk.segment import ClusterExtent
from carpool.disk.settings import IndexSettings
from carpool.errors import ConfigError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.cache.cluster_cache import ClusterCache
from searcher.cache.edgerag import EdgeRag
from searcher.cache.lru import Lru
from searcher.cache.policy import CachePolicy
from searcher.events import EventLog
from searcher.execution.executor import Executor
from searcher.execution.query_by_query import QueryByQuery
from searcher.plan.reads import ReadLimits
from searcher.scoring import Scorer
from searcher.settings import SearcherSettings
from searcher.store.direct import DirectReader
from searcher.store.reader import ClusterReader

OpenReader = Callable[[Path], ClusterReader]


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An index that is ready to be searched."""

    manifest: Manifest
    documents: DocumentStore
    reader: ClusterReader
    cache: ClusterCache
    executor: Executor

    def close(self) -> None:
        """Ends the reader threads and closes the files. Blocks for up to half a second."""
        if self.cache.close():
            self.reader.close()
        self.documents.close()


def open_searcher(
    settings: SearcherSettings,
    index: IndexSettings,
    metrics: Metrics,
    clock: Clock,
    *,
    events: EventLog,
    scorer: Scorer,
    open_reader: OpenReader | None = None,
) -> Opened:
    """Opens the index and what reads it. Blocks; the centroids are let go, only the grouper needs them.

    Raises `ConfigError` where there is no index, a cluster exceeds the budget or O_DIRECT is refused, `CorruptionError`
    where the index is damaged.
    """
    opened = open_index(Path(index.dir))
    try:
        _check_budget(opened.extents, settings.budget_bytes)
        reader = (open_reader or (lambda path: DirectReader(path, settings.direct_io)))(opened.segment_path)
    except BaseException:
        opened.close()
        raise
    cache = ClusterCache(
        reader=reader,
        extents=opened.extents,
        dimension=opened.manifest.dimension,
        path=str(opened.segment_path),
        policy=_policy(settings, opened.manifest),
        limits=ReadLimits(
            budget_bytes=settings.budget_bytes,
            demand_reads_max=settings.reader_threads,
            prefetch_reads_max=settings.prefetch_reads_max if settings.prefetch else 0,
        ),
        read_attempts=settings.read_attempts,
        metrics=metrics,
        clock=clock,
        events=events,
    )
    return Opened(
        manifest=opened.manifest,
        documents=opened.documents,
        reader=reader,
        cache=cache,
        executor=QueryByQuery(cache, scorer, clock, events),
    )


def _policy(settings: SearcherSettings, manifest: Manifest) -> CachePolicy:
    if settings.cache_policy == "lru":
        return Lru()
    return EdgeRag({ClusterId(cluster): latency for cluster, latency in enumerate(manifest.read_latency_us)})


def _check_budget(extents: tuple[ClusterExtent, ...], budget_bytes: int) -> None:
    largest = max(extents, key=lambda extent: extent.size_bytes)
    if largest.size_bytes > budget_bytes:
        raise ConfigError(
            f"[searcher] budget_bytes is {budget_bytes}, and cluster {largest.cluster} alone takes {largest.size_bytes}: a query "
            f"that probes it could never be answered. Set budget_bytes to at least {largest.size_bytes} (several times that to "
            "be of use), or rebuild the index with more clusters (--nlist)"
        )

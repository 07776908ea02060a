"""Opens the parts of the searcher: index, passages, and the planes that its codes allow."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import msgspec

from carpool.clock import Clock
from carpool.corpus.base_folders import base_to_open, bases_dir
from carpool.corpus.follower import CorpusFollower
from carpool.disk.index import OpenIndex, open_index
from carpool.disk.manifest import Manifest
from carpool.disk.settings import IndexSettings
from carpool.errors import ConfigError
from carpool.kafka.settings import KafkaSettings
from carpool.telemetry.metrics import Metrics
from schemas.document import Base
from searcher.executor import Executor
from searcher.executor_by_mode import ExecutorByMode
from searcher.fresh.corpus import LiveCorpus
from searcher.fresh.open import IndexRows, open_corpus
from searcher.open_exact import EXACT_WITH_CODES, ExactPlane, exact_bytes_min, open_exact_plane
from searcher.passages.open import PASSAGE_BUFFERS_BYTES, open_passages
from searcher.row_source import RowPassages
from searcher.settings import SearcherSettings
from searcher.snapshot import Snapshot
from searcher.store.reader import OpenReads


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
class BothPlanes:
    """Implements `SearchPlane`: codes for most searches, whole clusters for exact ones."""

    codes: SearchPlane
    exact: ExactPlane
    executor: Executor

    def close(self) -> None:
        """Closes both."""
        self.codes.close()
        self.exact.close()


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenSearcher:
    """An index that is ready to be searched.

    `settings`: those that it was opened with. `has_room`: it leaves half of the budget for another
    one. `rows`: its documents. `ended` is set when `executor.run` has returned.
    """

    manifest: Manifest
    plane: SearchPlane
    passages: RowPassages
    settings: SearcherSettings
    rows: IndexRows
    corpus: LiveCorpus | None = None
    follower: CorpusFollower | None = None
    has_room: bool = False
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def snapshot(self) -> Snapshot | None:
        """What searches that begin now see; None: all of the index, and nothing else."""
        return None if self.corpus is None else self.corpus.snapshot

    @property
    def executor(self) -> Executor:
        """The executor of the plane."""
        return self.plane.executor

    def close(self) -> None:
        """Closes the corpus, the plane and the passages. Blocks for up to half a second each."""
        if self.follower is not None:
            self.follower.close()
        self.plane.close()
        self.passages.close()


def open_searcher(
    settings: SearcherSettings,
    index: IndexSettings,
    metrics: Metrics,
    clock: Clock,
    kafka: KafkaSettings | None = None,
    *,
    base: Base | None = None,
    open_reads: OpenReads | None = None,
) -> OpenSearcher:
    """Opens the index, its search plane and passages; does not keep the centroids. Blocks.

    With `kafka`, it begins to follow the documents that came after it. `base`: None is the newest
    one that is on this machine, or the index itself. Raises `ConfigError` where there is no index,
    a cluster exceeds the budget or O_DIRECT is refused, `CorruptionError` where the index is
    damaged.
    """
    live = kafka if settings.fresh_bytes else None
    if live is not None and settings.shard_bytes:
        raise ConfigError(
            "[searcher] a hot shard needs an index that does not change: set fresh_bytes = 0, or "
            "shard_bytes = 0"
        )
    folder = Path(index.dir)
    if base is None and live is not None:
        base = base_to_open(folder, live, clock)
    folder = folder if base is None else bases_dir(folder) / base.folder
    has_room = live is not None and has_room_for_two(folder, settings)
    own = settings
    if has_room:
        own = msgspec.structs.replace(settings, budget_bytes=settings.budget_bytes // 2)
    opened = open_index(folder)
    try:
        found = search_and_passages(opened, own, metrics, clock, open_reads=open_reads)
        if live is not None:
            follower, corpus = open_corpus(opened, own, live, metrics, clock, base, found.rows)
            found = replace(found, follower=follower, corpus=corpus)
    finally:
        opened.close()
    if found.follower is not None:
        found.follower.start()
    return replace(found, settings=settings, has_room=has_room)


def has_room_for_two(index_dir: Path, settings: SearcherSettings) -> bool:
    """Returns whether half of the budget holds all codes of an index. Blocks."""
    index = open_index(index_dir)
    try:
        half = msgspec.structs.replace(settings, budget_bytes=settings.budget_bytes // 2)
        if not _may_scan_codes(index, half):
            return False
        from searcher.codes.open import choose_codes

        chosen = choose_codes(index, bytes_for_codes(index, half))
        return chosen is not None and chosen.paged_bytes is None
    finally:
        index.close()


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
    of_places = index.documents.table.of_places
    assert of_places is not None, "an index on disk says which document a row is of"
    return OpenSearcher(
        manifest=index.manifest,
        plane=plane,
        passages=passages,
        settings=settings,
        rows=IndexRows(index.dir, index.manifest, of_places),
    )


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
        # An exact search needs none of these modules.
        from searcher.codes.open import choose_codes, log_choice, open_codes_plane
        from searcher.open_shard import open_shard

        codes_bytes = settings.budget_bytes - settings.shard_ram_bytes - exact_bytes_min(index)
        chosen = choose_codes(index, codes_bytes)
        log_choice(index, chosen, codes_bytes)
    if chosen is None:
        _check_no_shard(settings)
        return open_exact_plane(index, settings, metrics, clock, open_reads=open_reads)
    exact_bytes = settings.budget_bytes - settings.shard_ram_bytes - chosen.memory_bytes
    exact = open_exact_plane(
        index,
        msgspec.structs.replace(settings, budget_bytes=exact_bytes),
        metrics,
        clock,
        open_reads=open_reads,
        options=EXACT_WITH_CODES,
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
    memory_bytes = chosen.memory_bytes + exact.memory.arena_bytes_total + settings.shard_ram_bytes
    metrics.searcher.budget_bytes.set(memory_bytes)
    return BothPlanes(
        codes=by_codes,
        exact=exact,
        executor=ExecutorByMode(by_codes.executor, exact.executor, metrics),
    )


def bytes_for_codes(index: OpenIndex, settings: SearcherSettings) -> int:
    """Returns what passages, exact searches and a hot shard leave of `budget_bytes` for codes."""
    other_bytes = PASSAGE_BUFFERS_BYTES + exact_bytes_min(index) + settings.shard_ram_bytes
    return settings.budget_bytes - other_bytes


def _may_scan_codes(index: OpenIndex, settings: SearcherSettings) -> bool:
    return settings.search_mode != "exact" and bool(index.manifest.codes)


def _check_no_shard(settings: SearcherSettings) -> None:
    if settings.shard_bytes:
        raise ConfigError(
            "[searcher] shard_bytes is set, and this searcher has no codes: a hot shard saves "
            "scans of codes. Set shard_bytes = 0, or build the index with codes "
            "(`carpool index codes DIR`), give them enough budget_bytes, and set "
            'search_mode to "default"'
        )

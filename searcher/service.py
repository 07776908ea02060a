"""The searcher as a stage: an executor searches groups, and each query gets one output.

It has three threads. The polling thread adds groups to the executor. The search thread opens the
index and runs the executor. The answer thread reads the passages of all results that wait, and
encodes records, so that neither disk nor scoring waits for that. A query leaves as soon as its own
clusters are done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import structlog
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from carpool.clock import Clock
from carpool.disk.manifest import Manifest, is_newer
from carpool.disk.settings import IndexSettings
from carpool.errors import DeploymentError
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.loop.stage import Credit, Sink, Stage, Unit
from carpool.telemetry.metrics import Metrics
from carpool.worker import Worker
from schemas.document import Base
from schemas.group import Group
from schemas.query import Query
from schemas.record import ClusterId
from searcher.base_swaps import BaseSwaps
from searcher.bounds import LOOK_US, BoundWaits, is_reached, refused, stale
from searcher.build import OpenSearcher, open_searcher
from searcher.ended_searches import EndedSearches
from searcher.executor import DraftWish, Search, SearchGroup
from searcher.in_hand import InHand, PendingSearch, owed
from searcher.index_fit import check_fits, lags_behind
from searcher.results import expire, return_query
from searcher.settings import SearcherSettings
from searcher.snapshot import Snapshot
from searcher.store.reader import OpenReads

_log = structlog.get_logger(__name__)


def build_stage(
    settings: SearcherSettings,
    index: IndexSettings,
    metrics: Metrics,
    clock: Clock,
    kafka: KafkaSettings | None = None,
    *,
    open_reads: OpenReads | None = None,
) -> SearcherStage:
    """Returns the searcher's stage. `open_reads` is for tests and benchmarks.

    `kafka`: the brokers that have the documents which came after the index; None: none came. The
    index is opened after `start`, on the search thread; its errors go to `Sink.fail`.
    """
    open_parts = partial(
        open_searcher, settings, index, metrics, clock, kafka, open_reads=open_reads
    )
    return SearcherStage(settings, open_parts, Path(index.dir), metrics, clock)


class SearcherStage(Stage[Group]):
    """See `carpool.loop.stage` for what each method promises."""

    def __init__(
        self,
        settings: SearcherSettings,
        open_parts: Callable[..., OpenSearcher],
        index_dir: Path,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        """`open_parts` takes a `base`, see `open_searcher`, and may block."""
        self._settings = settings
        self._open_parts = open_parts
        self._metrics = metrics
        self._clock = clock
        self._in_hand = InHand()
        self._ended = EndedSearches(self._in_hand, metrics, clock)
        self._worker = Worker[OpenSearcher]("the index is being opened", OpenSearcher.close)
        self._waits = BoundWaits()
        self._swaps = BaseSwaps(
            self._worker,
            self._in_hand,
            lambda base: self._open(base=base),
            self._run_searches,
            index_dir,
            metrics,
            clock,
        )
        self._last_returned = ""  # version of the index of the last group that did not fit
        self._sink: Sink  # from `start` on

    # ---- the polling thread

    def start(self, sink: Sink) -> None:
        """Starts the search thread, which opens the index, and the answer thread."""
        self._sink = self._ended.sink = sink
        self._worker.start(
            sink.fail, search=self._search, answers=self._ended.run, bases=self._swaps.run
        )

    def credit(self) -> Credit:
        """Returns how many groups and bytes fit; none until the index is open."""
        if self.not_ready():
            return Credit(records=0, size_bytes=0)
        return self._in_hand.credit()

    def offer(self, unit: Unit[Group], now_us: int) -> None:
        """Adds a group.

        The queries of a group that was planned with an older index are planned again. If the index
        of the group is newer, this member leaves its consumer group.
        """
        opened = self._worker.parts
        assert opened is not None, "a group was offered without credit"
        group, manifest = unit.record, opened.manifest
        if is_newer(group.index_version, manifest.index_version):
            self._sink.leave_group(lags_behind(group, manifest))
            return
        if is_newer(manifest.index_version, group.index_version):
            self._return(unit, manifest)
            return
        try:
            check_fits(unit, manifest)
        except DeploymentError as error:
            self._worker.fail(error)
            return
        self._join(unit, self._unbound(unit, opened, now_us), opened)

    def _join(self, unit: Unit[Group], parts: Sequence[int], opened: OpenSearcher) -> None:
        """Adds queries of a group to the executor."""
        searches: list[Search] = []
        group, snapshot = unit.record, opened.snapshot
        for part in parts:
            try:
                if group.queries[part].query.fetch:
                    self._fetch(unit, part, opened)
                    continue
                searches += self._take(unit, part, opened, snapshot)
            except Exception as error:
                self._ended.charge(unit, part, error)
        if searches:
            opened.executor.join(
                SearchGroup(
                    searches=tuple(searches),
                    window=(group.grouper, group.window_id),
                    horizon=_horizon(group) | dict.fromkeys(_zero_clusters(opened.manifest), 1),
                    is_next=group.next is not None and not group.horizon,
                )
            )

    def _unbound(self, unit: Unit[Group], opened: OpenSearcher, now_us: int) -> list[int]:
        """Returns the parts of a group that need not wait for documents; the others wait."""
        ready, follower = list[int](), opened.follower
        position = {} if opened.snapshot is None else opened.snapshot.corpus.position
        for part in owed(unit):
            bound = unit.record.queries[part].query.bound
            if bound is None or is_reached(bound, position):
                ready.append(part)
            elif follower is None:
                why = "this searcher reads no documents (searcher.fresh_bytes is 0)"
                self._sink.done(refused(unit, part, why, now_us))
            elif self._waits.add(unit, part, bound, now_us):
                follower.ask_for_ends()
            else:
                self._sink.done(stale(unit, part, position, "too many queries wait", now_us))
        return ready

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        """Goes on with queries whose documents have come, and ends those that waited too long."""
        self._swaps.tick()
        opened = self._worker.parts
        if not self._waits or opened is None or opened.follower is None or opened.snapshot is None:
            return None
        position = opened.snapshot.corpus.position
        for each in () if self._swaps.is_pausing else self._waits.reached(position):
            self._join(each.unit, [each.part], opened)
        for each in self._waits.late(now_us):
            deadline_us = each.unit.record.queries[each.part].deadline_us
            if deadline_us is not None and now_us >= deadline_us:
                self._sink.done(expire(each.unit, each.part, now_us))
            else:
                why = opened.follower.notes() or "the indexer, or this searcher, is behind"
                self._sink.done(stale(each.unit, each.part, position, why, now_us))
        if ends := opened.follower.ends_of_documents:
            for each in self._waits.beyond(ends):
                why = f"rag.documents.v1 ends at {ends}, so no put has returned {each.bound}"
                self._sink.done(refused(each.unit, each.part, why, now_us))
        return now_us + LOOK_US if self._waits else None

    def _return(self, unit: Unit[Group], manifest: Manifest) -> None:
        """Sends the queries of a group back, to be planned with this index or a newer one."""
        group, ours = unit.record, manifest.index_version
        if group.index_version != self._last_returned:
            self._last_returned = group.index_version
            _log.warning(
                "groups of an older index: their queries are planned again; if that goes on, "
                "restart the groupers with the index of this searcher",
                group_index=group.index_version,
                index_version=ours,
                grouper=group.grouper,
            )
        for part in owed(unit):
            now_us = self._clock.now_us()
            done = return_query(unit, part, index_version=ours, now_us=now_us)
            if not done.early:
                self._metrics.loop.queries_returned.inc()
            self._sink.done(done)

    def revoke(self, unit_ids: frozenset[int], partitions: frozenset[TopicPartition]) -> None:
        """Forgets groups; the loop discards a query that ends at this moment."""
        self._waits.forget(unit_ids)
        self._in_hand.drop(self._in_hand.keys_of(unit_ids))

    def not_ready(self) -> Sequence[str]:
        """Returns why the searcher cannot work: the index, or the documents after it."""
        if missing := self._worker.not_ready():
            return missing
        if self._swaps.is_pausing:
            return ("a newer base is being opened, which does not fit beside the old one",)
        follower = self._worker.parts.follower if self._worker.parts is not None else None
        reason = "" if follower is None else follower.not_ready()
        return (reason, *filter(None, [self._swaps.trouble])) if reason else ()

    def notes(self) -> Sequence[str]:
        """Returns why newer documents are not found, if they are not."""
        follower = self._worker.parts.follower if self._worker.parts is not None else None
        notes = ("" if follower is None else follower.notes(), self._swaps.trouble)
        return tuple(filter(None, notes))

    def close(self) -> None:
        """Drops unfinished queries, and ends the threads and the index. See `Worker.close`."""
        self._worker.close(self._stop)

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the state is wrong; for tests and idle moments."""
        self._in_hand.check_integrity()
        if (opened := self._worker.parts) is not None:
            opened.executor.check_integrity()

    def _stop(self) -> None:
        self._swaps.stop()
        if (opened := self._worker.parts) is not None:
            opened.executor.stop()
        self._ended.stop()

    # ---- unfinished queries

    def _take(
        self, unit: Unit[Group], part: int, opened: OpenSearcher, snapshot: Snapshot | None
    ) -> list[Search]:
        """Returns the searches of a query: its own, and the others of its round."""
        grouped = unit.record.queries[part]
        keys = self._in_hand.new_keys(1 + len(grouped.other_searches))
        top_k = grouped.query.top_k or self._settings.top_k_default
        zero_clusters = _zero_clusters(opened.manifest)
        search = Search(
            key=keys[0],
            vector=np.frombuffer(grouped.vector, dtype="<f4"),
            clusters=tuple(dict.fromkeys(grouped.clusters + zero_clusters)),
            top_k=top_k,
            deadline_us=grouped.deadline_us,
            mode=grouped.query.search_mode or self._settings.search_mode,
            drafts=self._draft_wish(grouped.query, keys[0]),
            snapshot=snapshot,
        )
        others = [
            replace(
                search,
                key=key,
                vector=np.frombuffer(each.vector, dtype="<f4"),
                clusters=tuple(dict.fromkeys(each.clusters + zero_clusters)),
                top_k=each.top_k or top_k,
                drafts=None,
            )
            for key, each in zip(keys[1:], grouped.other_searches, strict=True)
        ]
        self._in_hand.take(PendingSearch(unit, part, keys, opened, snapshot))
        return [search, *others]

    def _fetch(self, unit: Unit[Group], part: int, opened: OpenSearcher) -> None:
        keys = self._in_hand.new_keys(1)
        self._in_hand.take(PendingSearch(unit, part, keys, opened))
        self._ended.add_fetch(keys[0])

    def _draft_wish(self, query: Query, key: int) -> DraftWish | None:
        """Returns when a query sends drafts; None: never, because no model answers it."""
        after_us = self._settings.drafts_after_ms * 1_000
        is_extractive = query.generation is not None and query.generation.extractive
        if not after_us or query.text is None or query.journal is not None or is_extractive:
            return None
        return DraftWish(after_us=after_us, send=partial(self._ended.add_draft, key))

    # ---- the search thread

    def _search(self) -> None:
        if (opened := self._worker.open(self._open)) is not None:
            self._run_searches(opened)

    def _run_searches(self, opened: OpenSearcher) -> None:
        # One BLAS thread each: more of them spin when a core is taken.
        with threadpool_limits(limits=1, user_api="blas"):
            try:
                opened.executor.run(self._ended.add)
            except Exception as error:  # any search may be the cause; the process ends
                parts = tuple((each.unit.id, each.part) for each in self._in_hand.all().values())
                self._sink.charge(tuple(dict.fromkeys(parts)), error)
                raise
            finally:
                opened.ended.set()

    def _open(self, base: Base | None = None) -> OpenSearcher:
        opened = self._open_parts(base=base)
        version = opened.manifest.index_version
        self._metrics.loop.index_info.labels(version=version).set(1)
        _log.info("ready", index_version=version, nlist=opened.manifest.nlist)
        return opened


def _zero_clusters(manifest: Manifest) -> tuple[ClusterId, ...]:
    return tuple(map(ClusterId, manifest.zero_clusters))


def _horizon(group: Group) -> dict[ClusterId, int]:
    """Returns in how many windows each cluster is needed next.

    Without a horizon, it is the clusters of the first query of the next group (CaGR-RAG, Eq. 4).
    """
    if group.horizon or group.next is None:
        return {entry.cluster: entry.windows for entry in group.horizon}
    return dict.fromkeys(group.next.clusters, 1)

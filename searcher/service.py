"""The searcher as a stage: an executor searches groups, and each query gets one output.

It has three threads. The polling thread adds groups to the executor. The search thread opens the
index and runs the executor. The answer thread reads the passages of all results that wait, and
encodes records, so that neither disk nor scoring waits for that. A query leaves as soon as its own
clusters are done.
"""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import structlog
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from carpool.clock import Clock
from carpool.disk.manifest import Manifest, is_newer
from carpool.disk.settings import IndexSettings
from carpool.errors import CarpoolError, DeploymentError
from carpool.kafka.records import TopicPartition
from carpool.loop.ends import one_by_one
from carpool.loop.stage import Credit, Done, Sink, Stage, Unit
from carpool.telemetry.metrics import Metrics
from schemas.group import Group
from schemas.query import Query
from schemas.record import ClusterId
from searcher.build import OpenSearcher, open_searcher
from searcher.drafts import DraftRecords
from searcher.executor import (
    DraftWish,
    Search,
    SearchDraft,
    SearchGroup,
    SearchResult,
)
from searcher.in_hand import InHand, PendingSearch, owed
from searcher.index_fit import check_fits, lags_behind
from searcher.results import expire, finish, return_query
from searcher.settings import SearcherSettings
from searcher.store.reader import OpenReads

_log = structlog.get_logger(__name__)

ANSWERED_TOGETHER_MAX = 64
"""Results whose passages are read together: they fill the buffers about once. More: a disk that
hangs fails more of them at a time.
"""


def build_stage(
    settings: SearcherSettings,
    index: IndexSettings,
    metrics: Metrics,
    clock: Clock,
    *,
    open_reads: OpenReads | None = None,
) -> SearcherStage:
    """Returns the searcher's stage. `open_reads` is for tests and benchmarks.

    The index is opened after `start`, on the search thread; its errors go to `Sink.fail`.
    """

    open_parts = partial(open_searcher, settings, index, metrics, clock, open_reads=open_reads)
    return SearcherStage(settings, open_parts, metrics, clock)


@dataclass(frozen=True, slots=True)
class _Drafted:
    """What the search `key` has found so far."""

    key: int
    found: SearchDraft


_Found = tuple[Search, SearchResult | None]


class SearcherStage(Stage[Group]):
    """See `carpool.loop.stage` for what each method promises."""

    def __init__(
        self,
        settings: SearcherSettings,
        open_parts: Callable[[], OpenSearcher],
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._open_parts = open_parts
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._in_hand = InHand()
        self._opened: OpenSearcher | None = None
        self._missing = "the index is being opened"
        self._last_returned = ""  # version of the index of the last group that did not fit
        self._is_closing = False
        self._found: queue.SimpleQueue[_Found | _Drafted | None] = queue.SimpleQueue()
        self._drafts = DraftRecords()  # of the answer thread
        self._threads: list[threading.Thread] = []
        self._sink: Sink  # from `start` on

    # ---- the polling thread

    def start(self, sink: Sink) -> None:
        """Starts the search thread, which opens the index, and the answer thread."""
        self._sink = sink
        for name, run in (("search", self._search), ("answers", self._answer)):
            thread = threading.Thread(target=self._guard, args=(run,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def credit(self) -> Credit:
        """Returns how many groups and bytes fit; none until the index is open."""
        with self._lock:
            if self._missing:
                return Credit(records=0, size_bytes=0)
        return self._in_hand.credit()

    def offer(self, unit: Unit[Group], now_us: int) -> None:
        """Adds a group.

        The queries of a group that was planned with an older index are planned again. If the index
        of the group is newer, this member leaves its consumer group.
        """
        opened = self._opened
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
            self._fail(error)
            return
        searches: list[Search] = []
        for part in owed(unit):
            try:
                searches += self._take(unit, part, opened)
            except Exception as error:
                self._charge(unit, part, error)
        if searches:
            opened.executor.join(
                SearchGroup(
                    searches=tuple(searches),
                    window=(group.grouper, group.window_id),
                    horizon=_horizon(group),
                )
            )

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
        self._drop(self._in_hand.keys_of(unit_ids))

    def _drop(self, keys: Collection[int]) -> None:
        for key, search in self._in_hand.let_go(keys).items():
            search.opened.executor.drop((key,))

    def _charge(self, unit: Unit[Group], part: int, error: Exception) -> None:
        """Forgets the search of a part, if any, and ends the try of its query."""
        self._drop(self._in_hand.keys_of((unit.id,), part))
        self._sink.charge(((unit.id, part),), error)

    def not_ready(self) -> Sequence[str]:
        """Returns why the searcher cannot work."""
        with self._lock:
            return (self._missing,) if self._missing else ()

    def close(self) -> None:
        """Ends the threads and the index; drops unfinished queries. Blocks up to a second."""
        with self._lock:
            self._is_closing = True
            self._missing = "the searcher is closing"
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.executor.stop()
        self._found.put(None)
        for thread in self._threads:
            thread.join(timeout=0.5)
        if opened is not None and not any(thread.is_alive() for thread in self._threads):
            opened.close()

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the state is wrong; for tests and idle moments."""
        with self._lock:
            opened = self._opened
        self._in_hand.check_integrity()
        if opened is not None:
            opened.executor.check_integrity()

    # ---- unfinished queries

    def _take(self, unit: Unit[Group], part: int, opened: OpenSearcher) -> list[Search]:
        """Returns the searches of a query: its own, and those beside it."""
        grouped = unit.record.queries[part]
        keys = self._in_hand.new_keys(1 + len(grouped.beside))
        top_k = grouped.query.top_k or self._settings.top_k_default
        search = Search(
            key=keys[0],
            vector=np.frombuffer(grouped.vector, dtype="<f4"),
            clusters=tuple(dict.fromkeys(grouped.clusters)),
            top_k=top_k,
            deadline_us=grouped.deadline_us,
            mode=grouped.query.search_mode or self._settings.search_mode,
            drafts=self._draft_wish(grouped.query, keys[0]),
        )
        others = [
            replace(
                search,
                key=key,
                vector=np.frombuffer(each.vector, dtype="<f4"),
                clusters=tuple(dict.fromkeys(each.clusters)),
                top_k=each.top_k or top_k,
                drafts=None,
            )
            for key, each in zip(keys[1:], grouped.beside, strict=True)
        ]
        self._in_hand.take(PendingSearch(unit, part, keys, opened))
        return [search, *others]

    def _draft_wish(self, query: Query, key: int) -> DraftWish | None:
        """Returns when a query sends drafts; None: never, because no model answers it."""
        after_us = self._settings.drafts_after_ms * 1_000
        is_extractive = query.generation is not None and query.generation.extractive
        if not after_us or query.text is None or query.journal is not None or is_extractive:
            return None
        return DraftWish(
            after_us=after_us, send=lambda draft: self._found.put(_Drafted(key, draft))
        )

    # ---- the other threads

    def _guard(self, run: Callable[[], None]) -> None:
        try:
            run()
        except CarpoolError as error:
            self._fail(error)
        except Exception as error:
            _log.exception("a thread of the searcher broke")
            self._fail(
                CarpoolError(
                    f"the {threading.current_thread().name} thread of the searcher broke: "
                    f"{error!r}; this is a fault of Carpool, please report it"
                )
            )

    def _fail(self, error: CarpoolError) -> None:
        with self._lock:
            self._missing = str(error)
        self._sink.fail(error)

    def _search(self) -> None:
        # One BLAS thread each: more of them spin when a core is taken.
        with threadpool_limits(limits=1, user_api="blas"):
            opened = self._open()
            if opened is None:
                return
            try:
                opened.executor.run(lambda search, found: self._found.put((search, found)))
            except Exception as error:  # any search may be the cause; the process ends
                parts = tuple((each.unit.id, each.part) for each in self._in_hand.all().values())
                self._sink.charge(tuple(dict.fromkeys(parts)), error)
                raise

    def _open(self) -> OpenSearcher | None:
        opened = self._open_parts()
        with self._lock:
            if not self._is_closing:
                self._opened, self._missing = opened, ""
                version = opened.manifest.index_version
                self._metrics.loop.index_info.labels(version=version).set(1)
                _log.info("ready", index_version=version, nlist=opened.manifest.nlist)
                return opened
        opened.close()
        return None

    def _answer(self) -> None:
        while taken := self._wait_for_found():
            results = [item for item in taken if not isinstance(item, _Drafted)]
            pending = self._in_hand.get(search.key for search, _ in results)  # else revoked
            ended = [(pending[one.key], one, found) for one, found in results if one.key in pending]
            one_by_one(
                ended,
                self._end,
                lambda item, error: self._charge(item[0].unit, item[0].part, error),
            )
            try:
                self._send_drafts([item for item in taken if isinstance(item, _Drafted)])
            except Exception:
                _log.exception("drafts failed; their final results come nevertheless")

    def _end(self, ended: Sequence[tuple[PendingSearch, Search, SearchResult | None]]) -> None:
        """Ends these searches."""
        now_us = self._clock.now_us()
        done = defaultdict[OpenSearcher, list[tuple[PendingSearch, SearchResult]]](list)
        for query, search, found in ended:
            if found is None or _is_late(query, now_us):
                self._done(query, expire(query.unit, query.part, now_us))
            elif (whole := self._in_hand.joined(search.key, found)) is not None:
                done[query.opened].append((query, whole))
        for opened, found_there in done.items():
            self._answer_together(found_there, opened)

    def _send_drafts(self, drafts: Sequence[_Drafted]) -> None:
        """Sends the newest draft of each search that goes on."""
        newest = {draft.key: draft.found for draft in drafts}
        self._drafts.keep_only(self._in_hand.all().keys())
        for key, query in self._in_hand.get(newest).items():
            output = self._drafts.output(
                key,
                query.unit.record,
                query.part,
                newest[key],
                query.opened.passages,
                self._clock.now_us(),
            )
            if output is not None:
                self._sink.hint(output)
                self._metrics.searcher.drafts.inc()

    def _wait_for_found(self) -> list[_Found | _Drafted]:
        """Returns the results and drafts that wait; none at the end. Blocks until there is one."""
        items: list[_Found | _Drafted] = []
        while len(items) < ANSWERED_TOGETHER_MAX:
            try:
                item = self._found.get(block=not items)
            except queue.Empty:
                break
            if item is None:
                return []
            items.append(item)
        return items

    def _done(self, pending: PendingSearch, done: Done) -> None:
        if not self._in_hand.let_go(pending.keys):
            return  # it was revoked
        if len(pending.keys) > 1:
            pending.opened.executor.drop(pending.keys)  # of an expired query, some may go on
        self._sink.done(done)

    def _answer_together(
        self,
        done: Sequence[tuple[PendingSearch, SearchResult]],
        opened: OpenSearcher,
    ) -> None:
        """Reads the passages of results, and hands each over as soon as it has them."""
        started_us = self._clock.now_us()
        rows = [found.best.rows.tolist() for _, found in done]
        for position, passages in opened.passages.read(rows):
            pending, found = done[position]
            now_us = self._clock.now_us()
            finished, timings_us = finish(
                pending.unit,
                pending.part,
                found,
                passages,
                fetch_us=now_us - started_us,
                measured_nprobe=opened.manifest.nprobe_default if opened.manifest.recall else None,
                now_us=now_us,
            )
            if finished.early is None:
                for stage in ("queue_search", "load", "search", "passages"):
                    seconds = timings_us[stage] / 1_000_000
                    self._metrics.loop.stage_seconds.labels(stage=stage).observe(seconds)
            self._done(pending, finished)


def _horizon(group: Group) -> dict[ClusterId, int]:
    """Returns in how many windows each cluster is needed next.

    Without a horizon, it is the clusters of the first query of the next group (CaGR-RAG, Eq. 4).
    """
    if group.horizon or group.next is None:
        return {entry.cluster: entry.windows for entry in group.horizon}
    return dict.fromkeys(group.next.clusters, 1)


def _is_late(pending: PendingSearch, now_us: int) -> bool:
    deadline_us = pending.grouped.deadline_us
    return deadline_us is not None and now_us >= deadline_us

"""Reads the passages of what searches have found, and hands over a record of each query."""

from __future__ import annotations

import queue
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from carpool.clock import Clock
from carpool.loop.ends import one_by_one
from carpool.loop.stage import Done, Sink, Unit
from carpool.telemetry.metrics import Metrics
from schemas.group import Group
from searcher.build import OpenSearcher
from searcher.drafts import DraftRecords
from searcher.executor import Search, SearchDraft, SearchResult
from searcher.fetch import fetched
from searcher.fresh.passages import read_passages
from searcher.in_hand import InHand, PendingSearch
from searcher.results import expire, finish

_log = structlog.get_logger(__name__)

ANSWERED_TOGETHER_MAX = 64
"""Results whose passages are read together: they fill the buffers about once. More: a disk that
hangs fails more of them at a time.
"""


@dataclass(frozen=True, slots=True)
class _Drafted:
    """What the search `key` has found so far."""

    key: int
    found: SearchDraft


@dataclass(frozen=True, slots=True)
class _Fetching:
    """The query of the search `key` fetches documents."""

    key: int


_Found = tuple[Search, SearchResult | None]


class EndedSearches:
    """Results and drafts that wait for their passages. `run` is for one thread, the rest for any.

    `sink` is set before the first search ends.
    """

    sink: Sink

    def __init__(self, in_hand: InHand, metrics: Metrics, clock: Clock) -> None:
        self._in_hand = in_hand
        self._metrics = metrics
        self._clock = clock
        self._waiting: queue.SimpleQueue[_Found | _Drafted | _Fetching | None] = queue.SimpleQueue()
        self._drafts = DraftRecords()

    def add(self, search: Search, found: SearchResult | None) -> None:
        """Adds a result; None: the search is late."""
        self._waiting.put((search, found))

    def add_draft(self, key: int, draft: SearchDraft) -> None:
        """Adds what a search has found so far."""
        self._waiting.put(_Drafted(key, draft))

    def add_fetch(self, key: int) -> None:
        """Adds a query that fetches."""
        self._waiting.put(_Fetching(key))

    def charge(self, unit: Unit[Group], part: int, error: Exception) -> None:
        """Forgets the searches of a part, if any, and ends the try of its query."""
        self._in_hand.drop(self._in_hand.keys_of((unit.id,), part))
        self.sink.charge(((unit.id, part),), error)

    def stop(self) -> None:
        """Makes `run` return soon."""
        self._waiting.put(None)

    def run(self) -> None:
        """Hands over what waits, until `stop`."""
        while taken := self._take():
            results = [item for item in taken if isinstance(item, tuple)]
            pending = self._in_hand.get(search.key for search, _ in results)  # else revoked
            ended = [(pending[one.key], one, found) for one, found in results if one.key in pending]
            one_by_one(
                ended,
                self._end,
                lambda item, error: self.charge(item[0].unit, item[0].part, error),
            )
            fetching = self._in_hand.get(it.key for it in taken if isinstance(it, _Fetching))
            one_by_one(
                list(fetching.values()),
                self._fetch,
                lambda query, error: self.charge(query.unit, query.part, error),
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
            deadline_us = query.grouped.deadline_us
            if found is None or (deadline_us is not None and now_us >= deadline_us):
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
                self.sink.hint(output)
                self._metrics.searcher.drafts.inc()

    def _fetch(self, queries: Sequence[PendingSearch]) -> None:
        """Ends these queries with the documents that they fetch."""
        for query in queries:
            self._done(query, fetched(query.unit, query.part, query.opened, self._clock.now_us()))

    def _take(self) -> list[_Found | _Drafted | _Fetching]:
        """Returns the results and drafts that wait; none at the end. Blocks until there is one."""
        items: list[_Found | _Drafted | _Fetching] = []
        while len(items) < ANSWERED_TOGETHER_MAX:
            try:
                item = self._waiting.get(block=not items)
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
        self.sink.done(done)

    def _answer_together(
        self, done: Sequence[tuple[PendingSearch, SearchResult]], opened: OpenSearcher
    ) -> None:
        """Reads the passages of results, and hands each over as soon as it has them."""
        started_us = self._clock.now_us()
        rows = [found.best.rows.tolist() for _, found in done]
        fresh = [None if it.snapshot is None else it.snapshot.fresh for it, _ in done]
        for position, passages in read_passages(opened.passages, rows, fresh):
            pending, found = done[position]
            now_us = self._clock.now_us()
            finished, timings_us = finish(
                pending.unit,
                pending.part,
                found,
                passages,
                corpus=None if pending.snapshot is None else pending.snapshot.corpus,
                fetch_us=now_us - started_us,
                measured_nprobe=opened.manifest.nprobe_default if opened.manifest.recall else None,
                now_us=now_us,
            )
            if finished.early is None:
                for stage in ("queue_search", "load", "search", "passages"):
                    seconds = timings_us[stage] / 1_000_000
                    self._metrics.loop.stage_seconds.labels(stage=stage).observe(seconds)
            self._done(pending, finished)

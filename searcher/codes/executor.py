"""The executor of indexes with codes: scan codes in memory, read few rows, score them exactly.

Sources of rows scan the clusters of all queries that wait, and propose the rows with the best
estimates. The search thread reads the proposed rows of all queries in hand together, each page
once, and multiplies them. A query leaves when its last row is scored.

The search thread scans, with the threads of the scanner. While the kernel reads rows of some
queries, it scans for the next ones. Other threads only leave messages.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Sequence

import numpy as np

from carpool.arrays import Bool, Int64
from carpool.clock import Clock
from carpool.codes.margin import COUNT_MAX, rows_within
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.codes.query import CodesQuery, Probes
from searcher.executor import Finish, Search, SearchGroup, SearchResult
from searcher.row_source import RowSource, RowsRead, RowVectors, Scan, Scanned
from searcher.scoring.top_k import TopK
from searcher.search_loop import DropSearches, SearchLoop, StopSearching
from searcher.store.waker import Waker

MORE = 4
"""Times the rows that a scan proposes if all that it proposed are within the margin."""


class CodesExecutor(SearchLoop):
    """Implements `Executor`. Rows, sources and the waker belong to the caller."""

    def __init__(
        self,
        *,
        sources: Sequence[RowSource],
        fresh: RowSource,
        rows: RowVectors,
        waker: Waker,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        """`waker` must wake when a read of `rows` or of one of `sources` ends.

        A cluster is scanned by the first source that has it; the last one has all. `fresh` scans
        the fresh rows of each search that has some.
        """
        super().__init__(waker, clock)
        self._sources = (*sources, fresh)
        self._fresh = fresh
        self._rows = rows
        self._metrics = metrics.searcher
        self._probes = Probes(rows.nlist)
        self._queries: dict[int, CodesQuery] = {}

    # ---- the search thread

    def run(self, finish: Finish) -> None:
        """Runs searches until `stop`; see `Executor.run`."""
        try:
            while not self._is_stopped:
                self._take_messages()
                self._expire(finish)
                for source in self._sources:
                    found = source.advance(may_scan=self._may_scan())
                    self._take_scanned(found, finish)
                read = self._rows.advance(self._are_in_hand)
                if read:
                    read_bytes = self._metrics.bytes_read.labels(purpose="demand")
                    read_bytes.inc(sum(sum(rows.bytes_read.values()) for rows in read))
                for rows in read:
                    self._score(rows, finish)
                is_ready = self._may_scan() and any(source.is_ready for source in self._sources)
                if not (is_ready or self._is_stopped):
                    waits = [source.times_out_at_us for source in self._sources]
                    self._wait(self._rows.times_out_at_us, *waits)
        finally:
            for source in self._sources:
                source.close()

    def check_integrity(self) -> None:
        """Checks queries and rows against each other; see `Executor`."""
        self._rows.check_integrity()
        for source in self._sources:
            source.check_integrity()
        assert self._deadlines.keys() <= self._queries.keys()
        pending = self._rows.pending()
        for key, query in self._queries.items():
            assert query.unscored in (-1, pending.get(key, 0)), f"query {key} lost a row"

    def _may_scan(self) -> bool:
        # Rows that wait for a buffer must not become more and more.
        return self._rows.waiting <= 1

    # ---- messages

    def _take_messages(self) -> None:
        while True:
            try:
                message = self._mailbox.get_nowait()
            except queue.Empty:
                return
            match message:
                case SearchGroup():
                    self._join(message)
                case DropSearches():
                    for key in message.keys:
                        self._forget(key)
                case StopSearching():
                    self._is_stopped = True

    def _join(self, group: SearchGroup) -> None:
        begins_window = self._begins_window(group)
        for source in self._sources:
            source.join(group, begins_window=begins_window)
        for search in group.searches:
            self._begin(search)

    def _begin(self, search: Search) -> None:
        query = self._queries[search.key] = CodesQuery(search, self._clock.now_us())
        self._scan_all(query)
        if search.deadline_us is not None:
            self._deadlines[search.key] = search.deadline_us
        in_memory = len(search.clusters) - len(query.tiers)
        self._metrics.cluster_requests.labels(tier="ram").inc(in_memory)
        for tier, count in Counter(query.tiers.values()).items():
            self._metrics.cluster_requests.labels(tier=tier).inc(count)

    def _scan_all(self, query: CodesQuery) -> None:
        """Has all of its clusters scanned, and the fresh rows."""
        search = query.search
        self._scan(query, search.clusters)
        if search.fresh is not None:
            query.promise(self._fresh.codec)
            query.scans += 1
            self._fresh.scan(
                Scan(
                    key=search.key,
                    vector=search.vector,
                    clusters=search.clusters,
                    count=query.count,
                    fresh=search.fresh,
                )
            )

    def _scan(self, query: CodesQuery, clusters: Sequence[ClusterId]) -> None:
        """Has each of `clusters` scanned by the first source that has it."""
        taken = list[tuple[RowSource, Sequence[ClusterId]]]()
        for source in self._sources:
            if clusters and (held := source.take(clusters)):
                taken.append((source, held))
                query.promise(source.codec)
                clusters = _without(clusters, held)
        query.scans += len(taken)
        key, vector, mask = query.search.key, query.search.vector, query.search.mask
        for source, held in taken:
            scan = Scan(key=key, vector=vector, clusters=held, count=query.count, mask=mask)
            query.tiers.update(source.scan(scan))

    def _forget(self, key: int) -> None:
        if self._queries.pop(key, None) is not None:
            for source in self._sources:
                source.drop(key)
        self._deadlines.pop(key, None)

    def _expire(self, finish: Finish) -> None:
        for key in self._late():
            search = self._queries[key].search
            self._forget(key)
            finish(search, None)

    def _are_in_hand(self, keys: Int64) -> Bool:
        return np.array([key in self._queries for key in keys.tolist()], bool)

    # ---- scans

    def _take_scanned(self, found: Sequence[Scanned], finish: Finish) -> None:
        """Keeps what scans propose, and wants the rows of each query whose scans have all ended.

        What a source lacks is scanned by another, first.
        """
        owners, wanted = list[int](), list[Int64]()
        for scanned in found:
            key = scanned.key
            if (query := self._queries.get(key)) is None:
                continue
            query.add(scanned)
            if query.scans:
                continue
            if query.lacking:
                lacking, query.lacking = query.lacking, []
                self._scan(query, lacking)
                self._waker.wake()
                continue
            rows, estimates = query.take_candidates()
            count, has_more = rows_within(estimates, query.search.top_k, query.margin)
            if has_more and len(rows) >= query.count < COUNT_MAX:
                query.count = min(COUNT_MAX, MORE * query.count)
                self._scan_all(query)
                self._waker.wake()
                continue
            proposed = query.score_fresh(rows[:count])
            query.unscored = len(proposed)
            if len(proposed):
                owners.append(key)
                wanted.append(proposed)
            else:
                self._finish(key, finish)
        if owners:
            counts = [len(rows) for rows in wanted]
            self._rows.add(np.repeat(np.array(owners), counts), np.concatenate(wanted))

    # ---- scores

    def _score(self, read: RowsRead, finish: Finish) -> None:
        """Scores the rows of a buffer, those of all queries in one product."""
        began_us = self._clock.now_us()
        owners, starts, counts = np.unique(read.owners, return_index=True, return_counts=True)
        known = [self._queries.get(owner) for owner in owners.tolist()]
        nobody = np.zeros(read.vectors.shape[1], np.float32)
        vectors = [nobody if query is None else query.search.vector for query in known]
        scores = np.empty(0, np.float32)
        if vectors:
            of_rows = np.repeat(np.stack(vectors), counts, axis=0)
            scores = np.einsum("nd,nd->n", read.vectors, of_rows)
        share_us = (self._clock.now_us() - began_us) // max(1, len(known))
        for query, start, count in zip(known, starts.tolist(), counts.tolist(), strict=True):
            if query is not None:
                query.scores.append(scores[start : start + count])
                query.rows.append(read.rows[start : start + count])
                query.unscored -= count
                query.search_us += share_us
        for owner, row, error in read.failed:
            if (query := self._queries.get(owner)) is not None:
                cluster = ClusterId(int(self._rows.clusters_of(np.array([row]))[0]))
                query.errors.setdefault(cluster, error)
                query.unscored -= 1
        for owner, bytes_read in read.bytes_read.items():
            if (query := self._queries.get(owner)) is not None:
                query.bytes_read += bytes_read
        for owner in dict.fromkeys([*owners.tolist(), *(owner for owner, _, _ in read.failed)]):
            if (query := self._queries.get(owner)) is not None and not query.unscored:
                self._finish(owner, finish)

    def _finish(self, key: int, finish: Finish) -> None:
        query = self._queries[key]
        self._forget(key)
        took_us = self._clock.now_us() - query.started_us
        result = SearchResult(
            best=self._best(query),
            probes=query.probes(query.search.clusters, self._probes),
            skipped=tuple(query.errors),
            errors=tuple(query.errors.values()),
            bytes_read=query.bytes_read,
            started_us=query.started_us,
            load_us=max(0, took_us - query.search_us),
            search_us=query.search_us,
            mode=query.search.mode,
            rows_read=sum(map(len, query.rows)),
        )
        finish(query.search, result)

    def _best(self, query: CodesQuery) -> TopK:
        rows, scores = query.best_rows()
        clusters = self._rows.clusters_of(rows)
        if (fresh := query.search.fresh) is not None:
            are_fresh = rows >= fresh.rows.first_row
            clusters[are_fresh] = fresh.clusters_of(rows[are_fresh])
        return TopK(scores, rows, clusters)


def _without(clusters: Sequence[ClusterId], some: Sequence[ClusterId]) -> Sequence[ClusterId]:
    """Returns `clusters` without `some` of them."""
    if len(some) == len(clusters):
        return ()
    gone = set(some)
    return [cluster for cluster in clusters if cluster not in gone]

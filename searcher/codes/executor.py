"""The executor of indexes with codes: scan codes in memory, read few rows, score them exactly.

A scan takes all queries that wait: it reads the codes of each cluster once for those that probe it,
and proposes the rows with the best estimates. Where not all codes are in memory at a time, a query
is scanned in parts. The search thread reads the proposed rows of all queries in hand together, each
page once, and multiplies them. A query leaves when its last row is scored.

Clusters that are in the hot shard are scanned there at the same time, instead of their codes.

The search thread scans, with the threads of the scanner. While the kernel reads rows of some
queries, it scans for the next ones. Other threads only leave messages.
"""

from __future__ import annotations

import queue
from collections import Counter, deque
from collections.abc import Iterator, Sequence

import numpy as np

from carpool.arrays import Bool, Int64
from carpool.clock import Clock
from carpool.codes.codec import CODEC
from carpool.codes.margin import COUNT_MAX, rows_within
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.codes.query import CodesQuery, Probes
from searcher.codes.source import NONE, CodeSource, ScanPart
from searcher.executor import Finish, Search, SearchGroup, SearchResult
from searcher.rows.row_reader import RowReader, RowsRead
from searcher.scoring.top_k import TopK
from searcher.search_loop import DropSearches, SearchLoop, StopSearching
from searcher.shard.hot_shard import HotShard
from searcher.shard.scans import Scanned, ScanTask, ShardScans
from searcher.store.waker import Waker

BATCH_MAX = 100
"""Queries of a scan. More: the first answers come later. Fewer: clusters are read more often."""
MORE = 4
"""Times the rows that a scan proposes if all that it proposed are within the margin."""


class CodesExecutor(SearchLoop):
    """Implements `Executor`. The rows and the waker belong to the caller."""

    def __init__(
        self,
        *,
        codes: CodeSource,
        rows: RowReader,
        waker: Waker,
        metrics: Metrics,
        clock: Clock,
        shard: HotShard | None = None,
    ) -> None:
        """`waker` must wake when a read of `rows` or of `codes` ends; `shard` is the caller's."""
        super().__init__(waker, clock)
        self._codes = codes
        self._rows = rows
        self._metrics = metrics.searcher
        self._shard = ShardScans(shard, self._put, clock) if shard is not None else None
        self._probes = Probes(len(codes.row_counts))
        self._queries: dict[int, CodesQuery] = {}
        self._waiting: deque[ScanPart] = deque()  # not scanned yet

    # ---- the search thread

    def run(self, finish: Finish) -> None:
        """Runs searches until `stop`; see `Executor.run`."""
        try:
            while not self._is_stopped:
                self._take_messages(finish)
                self._expire(finish)
                self._waiting += self._codes.advance()
                self._scan_shard(finish)
                has_scanned = self._scan(finish)
                read = self._rows.advance(self._are_in_hand)
                if read:
                    read_bytes = self._metrics.bytes_read.labels(purpose="demand")
                    read_bytes.inc(sum(sum(rows.bytes_read.values()) for rows in read))
                for rows in read:
                    self._score(rows, finish)
                if not (has_scanned or self._may_scan() or self._is_stopped):
                    self._wait(
                        self._rows.reader.times_out_at_us,
                        self._codes.times_out_at_us,
                        self._shard.times_out_at_us if self._shard is not None else None,
                    )
        finally:
            if self._shard is not None:
                self._shard.close()

    def check_integrity(self) -> None:
        """Checks queries and rows against each other; see `Executor`."""
        self._rows.reader.check_integrity()
        self._codes.check_integrity()
        assert self._deadlines.keys() <= self._queries.keys()
        pending = self._rows.pending()
        for key, query in self._queries.items():
            assert query.unscored in (-1, pending.get(key, 0)), f"query {key} lost a row"

    # ---- messages

    def _take_messages(self, finish: Finish) -> None:
        while True:
            try:
                message = self._mailbox.get_nowait()
            except queue.Empty:
                return
            match message:
                case SearchGroup():
                    self._join(message)
                case Scanned():
                    self._take_scanned(message, finish)
                case DropSearches():
                    for key in message.keys:
                        self._forget(key)
                case StopSearching():
                    self._is_stopped = True

    def _join(self, group: SearchGroup) -> None:
        if self._begins_window(group):
            self._codes.expect(group.horizon)
        if self._shard is not None:
            self._shard.shard.add_queries([search.clusters for search in group.searches])
        for search in group.searches:
            self._begin(search)

    def _begin(self, search: Search) -> None:
        query = self._queries[search.key] = CodesQuery(search, self._clock.now_us())
        held = self._want(search.key, query, search.clusters)
        if self._shard is not None:
            self._shard.shard.count(held, len(search.clusters))
        if search.deadline_us is not None:
            self._deadlines[search.key] = search.deadline_us
        in_memory = len(search.clusters) - len(query.tiers)
        self._metrics.cluster_requests.labels(tier="ram").inc(in_memory)
        for tier, count in Counter(query.tiers.values()).items():
            self._metrics.cluster_requests.labels(tier=tier).inc(count)

    def _want(self, key: int, query: CodesQuery, clusters: Sequence[ClusterId]) -> int:
        """Has `clusters` scanned: by the hot shard those that it has, the others by codes.

        Returns how many the shard has.
        """
        query.unscanned += len(clusters)
        held: tuple[ClusterId, ...] = ()
        if self._shard is not None and (held := self._shard.shard.take(clusters)):
            shard = self._shard.shard
            query.promise(shard.codec)
            query.tiers.update(dict.fromkeys(held, shard.tier))
            clusters = [cluster for cluster in clusters if cluster not in set(held)]
        if clusters:
            query.promise(CODEC)
            query.tiers.update(dict.fromkeys(self._codes.want(key, clusters), "ssd"))
        if held and self._shard is not None:
            vector, count = query.search.vector, query.count
            self._shard.add(ScanTask(key=key, vector=vector, clusters=held, count=count))
        return len(held)

    def _forget(self, key: int) -> None:
        if self._queries.pop(key, None) is not None:
            self._codes.drop(key)
        self._deadlines.pop(key, None)

    def _expire(self, finish: Finish) -> None:
        for key in self._late():
            search = self._queries[key].search
            self._forget(key)
            finish(search, None)

    def _are_in_hand(self, keys: Int64) -> Bool:
        return np.array([key in self._queries for key in keys.tolist()], bool)

    # ---- scans

    def _scan(self, finish: Finish) -> bool:
        """Scans what waits; returns whether there was something. Reads go on meanwhile."""
        if not self._may_scan():
            return False
        if not (batch := self._next_batch()):  # all were dropped: reads go on
            return True
        if self._shard is not None:
            self._shard.shard.begin_substages(len(batch))
        began_us = self._clock.now_us()
        queries = [self._queries[key] for key in batch]
        if new := [query for query in queries if query.proposed is None]:
            vectors, count = [query.search.vector for query in new], max(each.count for each in new)
            begun = self._codes.scanner.begin(np.stack(vectors), count)
            for query, proposed in zip(new, begun, strict=True):
                query.proposed = proposed
        every = [query.proposed for query in queries if query.proposed is not None]
        self._codes.scanner.add(every, list(batch.values()), self.mask)
        share_us = (self._clock.now_us() - began_us) // len(queries)
        for query, clusters in zip(queries, batch.values(), strict=True):
            query.search_us += share_us
            query.unscanned -= len(clusters)
        self._go_on(list(batch), finish)
        return True

    def _may_scan(self) -> bool:
        # Rows that wait for a buffer must not become more and more.
        return bool(self._waiting) and self._rows.waiting <= 1

    def _next_batch(self) -> dict[int, Int64]:
        """Takes the next clusters to scan, by query: of `BATCH_MAX` queries, or of one part."""
        batch, parts = dict[int, Int64](), list[ScanPart]()
        while self._waiting:
            part = self._waiting[0]
            own = dict.fromkeys([*part.keys.tolist(), *(key for key, _, _ in part.errors)], NONE)
            if len(batch) >= BATCH_MAX and not batch.keys() >= own.keys():
                break
            parts.append(self._waiting.popleft())
            self._codes.end(part.clusters)
            own = {key: none for key, none in own.items() if key in self._queries}
            batch |= own  # the others were dropped
            for key in list(own)[:1]:
                self._queries[key].bytes_read += part.bytes_read
            for key, cluster, error in part.errors:
                if key in own:
                    self._queries[key].errors[cluster] = error
                    self._queries[key].unscanned -= 1
        for key, clusters in _by_query(parts):
            if key in batch:
                batch[key] = clusters
        return batch

    def _take_scanned(self, scanned: Scanned, finish: Finish) -> None:
        """Keeps what a scan of the shard proposes."""
        if self._shard is None or not self._shard.end(scanned):
            return
        share_us = scanned.took_us // len(scanned.tasks)
        keys = []
        for task, rows, estimates in zip(
            scanned.tasks, scanned.rows, scanned.estimates, strict=True
        ):
            if (query := self._queries.get(task.key)) is not None:
                query.search_us += share_us
                query.unscanned -= len(task.clusters)
                query.candidates.append((rows, estimates))
                keys.append(task.key)
        self._go_on(list(dict.fromkeys(keys)), finish)

    def _go_on(self, keys: Sequence[int], finish: Finish) -> None:
        """Wants the rows that the scans of queries propose, or what is still to be scanned."""
        owners, wanted = list[int](), list[Int64]()
        for key in keys:
            query = self._queries[key]
            if query.unscanned:
                continue
            if query.lacking:
                lacking, query.lacking = query.lacking, []
                self._want_again(key, query, lacking)
                continue
            rows, estimates = query.take_candidates()
            count, has_more = rows_within(estimates, query.search.top_k, query.margin)
            if has_more and len(rows) >= query.count < COUNT_MAX:
                query.count = min(COUNT_MAX, MORE * query.count)
                self._want_again(key, query, query.search.clusters)
                continue
            proposed = rows[:count]
            query.unscored = len(proposed)
            if len(proposed):
                owners.append(key)
                wanted.append(proposed)
            else:
                self._finish(key, finish)
        if owners:
            counts = [len(rows) for rows in wanted]
            self._rows.add(np.repeat(np.array(owners), counts), np.concatenate(wanted))

    def _want_again(self, key: int, query: CodesQuery, clusters: Sequence[ClusterId]) -> None:
        self._want(key, query, clusters)
        self._waker.wake()

    # ---- the hot shard

    def _scan_shard(self, finish: Finish) -> None:
        """Begins a scan of the shard where it is due; codes do what a failed shard did not."""
        if self._shard is None:
            return
        lost = self._shard.lost()
        for part in lost:
            if (query := self._queries.get(part.key)) is not None:
                query.unscanned -= len(part.clusters)
                query.lacking += part.clusters
                for cluster in part.clusters:
                    query.tiers.pop(cluster, None)
        keys = dict.fromkeys(part.key for part in lost if part.key in self._queries)
        self._go_on(list(keys), finish)
        self._shard.shard.begin_substages(self._shard.start(self.mask))

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
                cluster = ClusterId(int(self._clusters_of(np.array([row]))[0]))
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
        return TopK(scores, rows, self._clusters_of(rows))

    def _clusters_of(self, rows: Int64) -> Int64:
        return np.searchsorted(self._codes.first_rows, rows, side="right") - 1


def _by_query(parts: Sequence[ScanPart]) -> Iterator[tuple[int, Int64]]:
    """Yields the clusters of each query, in the order of the parts."""
    keys = np.concatenate([NONE, *(part.keys for part in parts)])
    clusters = np.concatenate([NONE, *(part.clusters for part in parts)])
    order = np.argsort(keys, kind="stable")
    queries, starts = np.unique(keys[order], return_index=True)
    ends = [*starts[1:].tolist(), len(keys)]
    for query, start, end in zip(queries.tolist(), starts.tolist(), ends, strict=False):
        yield query, clusters[order[start:end]]

"""The executor of an index with codes: passes exact searches to one executor, others to another.

One query in `audit_every` is searched exactly too, when there was nothing else to do for a while,
and what its first search missed is counted: the promise is measured where it is given, on the
questions that are asked.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from carpool.telemetry.metrics import Metrics
from searcher.executor import Executor, Finish, Search, SearchGroup, SearchResult
from searcher.snapshot import Snapshot

AUDIT_EVERY = 1000
IDLE_S = 1.0
"""An audit begins when there was nothing to do for so long: it reads whole clusters."""
AUDITS_DUE_MAX = 1000
"""Audits that wait until nothing else is to be done; the oldest are given up."""
TIE = 1e-6
"""Scores nearer than this are equal: the two ways add the same numbers in another order."""


@dataclass(frozen=True, slots=True)
class _Audit:
    """A query that is searched again, and what it found."""

    search: Search
    found: SearchResult


class ExecutorByMode:
    """Implements `Executor`. `exact` runs on a thread of its own, so `finish` is called by two."""

    def __init__(
        self,
        codes: Executor,
        exact: Executor,
        metrics: Metrics,
        *,
        audit_every: int = AUDIT_EVERY,
        idle_s: float = IDLE_S,
    ) -> None:
        self._codes = codes
        self._exact = exact
        self._metrics = metrics.searcher
        self._audit_every = audit_every
        self._idle_s = idle_s
        self._timer: threading.Timer | None = None  # while an audit waits
        self._idle_from_s = 0.0  # the last end of a search
        self._lock = threading.Lock()
        self._in_hand: set[int] = set()  # keys of searches that are not finished
        # The executor of exact searches has keys of its own: audits begin later than searches.
        self._next_exact_key = 0
        self._exact_work: dict[int, Search | _Audit] = {}
        self._due: deque[_Audit] = deque(maxlen=AUDITS_DUE_MAX)
        self._error: BaseException | None = None

    def join(self, group: SearchGroup) -> None:
        """Adds a group; see `Executor.join`."""
        others = tuple(search for search in group.searches if search.mode != "exact")
        with self._lock:
            self._in_hand.update(search.key for search in group.searches)
            self._drop_old_audits(group.searches[-1].snapshot)
            exact = tuple(
                self._as_exact(search, search)
                for search in group.searches
                if search.mode == "exact"
            )
        if exact:
            # The horizon is about queries of which most read no cluster.
            self._exact.join(replace(group, searches=exact, horizon={}))
        if others:
            self._codes.join(replace(group, searches=others))

    def drop(self, keys: Collection[int]) -> None:
        """Forgets searches; see `Executor.drop`."""
        dropped = set(keys)
        with self._lock:
            self._in_hand -= dropped
            exact = [
                key
                for key, work in self._exact_work.items()
                if isinstance(work, Search) and work.key in dropped
            ]
        self._codes.drop(keys)
        self._exact.drop(exact)

    def run(self, finish: Finish) -> None:
        """Runs both; see `Executor.run`."""
        thread = threading.Thread(
            target=self._run_exact, args=(finish,), name="search-exact", daemon=True
        )
        thread.start()
        try:
            self._codes.run(lambda search, found: self._end(search, found, finish))
        finally:
            with self._lock:
                self._due.clear()
                self._stop_timer()
            self._exact.stop()
            thread.join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Makes `run` return soon; see `Executor.stop`."""
        self._codes.stop()

    def check_integrity(self) -> None:
        """Checks both executors; see `Executor`."""
        self._codes.check_integrity()
        self._exact.check_integrity()

    def _run_exact(self, finish: Finish) -> None:
        try:
            with threadpool_limits(limits=1, user_api="blas"):
                self._exact.run(lambda search, found: self._end_exact(search, found, finish))
        except BaseException as error:  # raised by `run`, on the search thread
            self._error = error
            self._codes.stop()

    def _as_exact(self, search: Search, work: Search | _Audit) -> Search:
        """Returns `search` for the executor of exact searches. Called with the lock."""
        key, self._next_exact_key = self._next_exact_key, self._next_exact_key + 1
        self._exact_work[key] = work
        if isinstance(work, _Audit):
            search = replace(search, deadline_us=None, drafts=None)
        return replace(search, key=key, mode="exact")

    # ---- ends of searches, on the two search threads

    def _end(self, search: Search, found: SearchResult | None, finish: Finish) -> None:
        finish(search, found)
        with self._lock:
            self._in_hand.discard(search.key)
            is_due = search.key % self._audit_every == 0
            if is_due and found is not None and not found.errors:
                self._due.append(_Audit(search, found))
        self._audit_later()

    def _end_exact(self, search: Search, found: SearchResult | None, finish: Finish) -> None:
        with self._lock:
            work = self._exact_work.pop(search.key)
        if isinstance(work, _Audit):
            if found is not None and not found.errors:
                self._count(work.found, found)
        else:
            finish(work, found)
            with self._lock:
                self._in_hand.discard(work.key)
        self._audit_later()

    def _drop_old_audits(self, snapshot: Snapshot | None) -> None:
        """Gives up audits of another snapshot: each keeps its own in memory. With the lock."""
        if self._due and self._due[-1].search.snapshot is not snapshot:
            self._due.clear()

    def _audit_later(self) -> None:
        """Begins an audit in `idle_s`, if one is due and nothing comes meanwhile."""
        with self._lock:
            self._idle_from_s = time.monotonic()
            if self._due and not self._is_busy() and self._timer is None:
                self._start_timer(self._idle_s)

    def _is_busy(self) -> bool:
        return bool(self._in_hand or self._exact_work)

    def _start_timer(self, wait_s: float) -> None:
        """Called with the lock."""
        self._timer = threading.Timer(wait_s, self._audit)
        self._timer.daemon = True
        self._timer.start()

    def _stop_timer(self) -> None:
        """Called with the lock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _audit(self) -> None:
        with self._lock:
            self._timer = None
            if not self._due or self._is_busy():
                return
            # A timer for each query that ends would cost as much as the query.
            left_s = self._idle_from_s + self._idle_s - time.monotonic()
            if left_s > 0:
                self._start_timer(left_s)
                return
            audit = self._due.popleft()
            search = self._as_exact(audit.search, audit)
        self._exact.join(SearchGroup(searches=(search,)))

    def _count(self, found: SearchResult, exact: SearchResult) -> None:
        rows = set(found.best.rows.tolist())
        last = float(found.best.scores[-1]) if len(rows) else float("-inf")
        missed = sum(
            row not in rows and score > last + TIE
            for row, score in zip(exact.best.rows.tolist(), exact.best.scores.tolist(), strict=True)
        )
        self._metrics.audited_ids.inc(len(exact.best.rows))
        self._metrics.missed_ids.inc(missed)

"""Threads that score clusters: the calling thread and its helpers share one list of parts, cut
evenly from what is asked.

A part is some pages of one cluster, so that one large cluster, or a lone query, keeps every core
busy too. Floors that one part raised serve the parts that begin after it, of all clusters and on
all threads. How parts are cut depends on what is asked alone, never on time, and floors only leave
out what could not enter: results do not depend on the threads' pace.

BLAS must be held to one thread by whoever runs the process: threads that share a product spin when
a core is taken.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np

from carpool.disk.pages import ClusterPages, UInt8
from searcher.scoring.joint_scan import score_jointly
from searcher.scoring.query_batch import QueryBatch, Scoring
from searcher.scoring.scan import score_pages
from searcher.scoring.top_k import Float32, Scored, Slots, TopTable

PARTS_PER_THREAD = 4
"""Parts that a thread's even share is cut into: more even out a core that is taken, and cost some
30 us each.
"""
PART_COST_MIN = 4 << 20
"""Cost below which nothing is cut further, and no helper is woken: a seventh of a millisecond for
one query.
"""
SMALL_BYTES_MAX = 128 << 10
"""Pages of a cluster, on average, up to which it costs less to put clusters together than to score
each by itself.
"""


class ScoringPool:
    """Scores sub-stages on some threads, the calling one among them.

    For one calling thread; close it at the end.
    """

    def __init__(self, threads: int) -> None:
        """Starts `threads - 1` helpers. Raises `ValueError` when `threads` is below 1."""
        if threads < 1:
            raise ValueError(f"{threads} scoring threads: at least one is needed, the calling one")
        self._runs: queue.SimpleQueue[_Run | None] = queue.SimpleQueue()
        self._helpers = [
            threading.Thread(target=self._help, name=f"scoring-{number}", daemon=True)
            for number in range(1, threads)
        ]
        for helper in self._helpers:
            helper.start()

    def run(self, scorings: Sequence[Scoring], asked: QueryBatch, table: TopTable) -> list[Scored]:
        """Returns what clusters have for their queries, in order; a cluster that was cut comes as
        several parts. Those that are small come as one.

        Blocks until all is scored. Reads `table` and leaves it as it is: merge what is returned.
        Raises the first error of any thread, after all of them have stopped; no view of pages is
        held afterwards.
        """
        if not scorings:
            return []
        floors, top_ks = table.floors(asked.slots), table.top_ks(asked.slots)
        costs = [scoring.cost for scoring in scorings]
        cost = sum(costs)
        if cost < PART_COST_MIN and _are_small(scorings):
            return [score_jointly(scorings, asked, floors, top_ks)]
        # Waking a helper and waiting for it costs more than a little work does, most of all where
        # cores are taken.
        helpers = min(len(self._helpers), cost // PART_COST_MIN)
        parts = _Parts(_cut(scorings, costs, 1 + helpers), asked, floors, top_ks)
        self._share(_Run(parts.work()), min(helpers, len(parts) - 1))
        return parts.scored

    def _share(self, run: _Run, helpers: int) -> None:
        """Does the work of `run` together with so many helpers. Raises the first error, after all
        threads have stopped.
        """
        for _ in range(helpers):
            self._runs.put(run)
        run.work()
        run.wait()

    def close(self) -> None:
        """Ends the helpers and waits for them. Do not call `run` afterwards. Safe to call twice."""
        for _ in self._helpers:
            self._runs.put(None)
        for helper in self._helpers:
            helper.join()
        self._helpers = []

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes."""
        self.close()

    def _help(self) -> None:
        while (run := self._runs.get()) is not None:
            run.work()
            del run  # or its results would live until the next


class _Run:
    """Pieces of work for several threads: each takes the next, until there is none, or one has
    failed.
    """

    def __init__(self, pieces: Iterator[Callable[[], None]]) -> None:
        self._pieces = pieces
        self._error: BaseException | None = None
        self._busy = 0  # threads at a piece
        self._has_ended = False
        self._lock = threading.Lock()
        self._until_ended = threading.Lock()
        self._until_ended.acquire()

    def work(self) -> None:
        """Does pieces until none is left."""
        while (piece := self._take()) is not None:
            try:
                piece()
            except BaseException as error:
                self._error = error
            del piece
            with self._lock:
                self._busy -= 1

    def wait(self) -> None:
        """Waits for the pieces that other threads have begun, after `work`. Raises the first error
        of any.
        """
        self._until_ended.acquire()
        # A helper that wakes up late holds this object, and must not hold pages.
        self._pieces = iter(())
        if self._error is not None:
            raise self._error

    def _take(self) -> Callable[[], None] | None:
        with self._lock:
            try:
                piece = next(self._pieces, None) if self._error is None else None
            except BaseException as error:  # the rest of the work is lost: who waits must know
                self._error, piece = error, None
            if piece is not None:
                self._busy += 1
            elif not self._busy and not self._has_ended:
                self._has_ended = True
                self._until_ended.release()
            return piece


class _Parts:
    """Parts of clusters, what became of them, and the floors that they share."""

    def __init__(
        self, parts: list[Scoring], asked: QueryBatch, floors: Float32, top_ks: Slots
    ) -> None:
        self._parts = parts
        self._asked = asked
        self._floors = floors
        self._top_ks = top_ks
        self._scored: list[Scored | None] = [None] * len(parts)

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def scored(self) -> list[Scored]:
        """What was scored, in order."""
        return [scored for scored in self._scored if scored is not None]

    def work(self) -> Iterator[Callable[[], None]]:
        """Yields what is to be done, each piece by one thread."""
        return (partial(self._score, number) for number in range(len(self)))

    def _score(self, number: int) -> None:
        (pages, members), floors = self._parts[number], self._floors
        vectors = np.take(
            self._asked.vectors.T, members, axis=1
        ).T  # as the scan reads them fastest
        found = score_pages(pages, vectors, floors[members], self._top_ks[members])
        # When two threads write at once, the lower floor may win: one that is too low leaves
        # nothing out.
        floors[members] = np.maximum(floors[members], found.floors)
        self._scored[number] = Scored(pages.cluster, self._asked.slots[members], found)


def _are_small(scorings: Sequence[Scoring]) -> bool:
    """Whether clusters cost less together: little is copied for each."""
    return sum(scoring.size_bytes for scoring in scorings) <= SMALL_BYTES_MAX * len(scorings)


def _cut(scorings: Sequence[Scoring], costs: Sequence[int], threads: int) -> list[Scoring]:
    """Cuts clusters so that parts cost about as much, several a thread; for one thread nothing is
    cut.
    """
    if threads == 1:
        return list(scorings)
    part_cost = max(PART_COST_MIN, sum(costs) // (threads * PARTS_PER_THREAD))
    return [
        Scoring(pages, scoring.members)
        for scoring, cost in zip(scorings, costs, strict=True)
        for pages in cut_pages(scoring.pages, max(1, round(cost / part_cost)))
    ]


def cut_pages(pages: ClusterPages, parts: int) -> Iterator[ClusterPages]:
    """Yields the rows of `pages`, in order, as at most `parts` clusters of nearly as many pages
    each: views.
    """
    page_count = pages.layout.page_count(pages.row_count)
    parts = min(parts, page_count)
    if parts == 1:
        yield pages
        return
    rows_per_page = pages.layout.rows_per_page
    for number in range(parts):
        start, end = page_count * number // parts, page_count * (number + 1) // parts
        row_count = min(end * rows_per_page, pages.row_count) - start * rows_per_page
        yield ClusterPages(
            pages.cluster, pages.layout, row_count, tuple(_slices(pages, start, end))
        )


def _slices(pages: ClusterPages, start: int, end: int) -> Iterator[UInt8]:
    first = 0
    for piece in pages.pieces:
        low, high = max(start - first, 0), min(end - first, len(piece))
        if low < high:
            yield piece[low:high]
        first += len(piece)

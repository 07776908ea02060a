"""The scoring threads: the calling thread and its helpers share one list of parts.

A part is some pages of one cluster, or several small clusters, so that one large cluster or a
single query keeps every core busy. A floor that one part reached serves the parts that begin later,
on all threads. How clusters are cut never depends on time, and floors only leave out rows that
cannot be results: results do not depend on the speed of the threads.

The caller must limit BLAS to one thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from carpool.arrays import Float32, UInt8
from carpool.disk.pages import ClusterPages
from searcher.scoring.scan import COPY_BYTES_MAX, QueryBatch, Scoring, scan
from searcher.scoring.top_k import Candidates, Slots, TopTable

PARTS_PER_THREAD = 4
"""Parts for each thread. More parts balance busy cores better, and cost some 30 us each."""
PART_COST_MIN = 4 << 20
"""Cost below which nothing is cut and no helper is woken: 0.15 ms for one query."""
QUERIES_PER_READ = 16
"""Multiplying a row with this many queries costs as much as reading the row from memory."""


class ScoringPool:
    """Scores sub-stages on several threads. For one calling thread, which is one of them."""

    def __init__(self, threads: int) -> None:
        """Starts `threads - 1` helpers. Raises `ValueError` when `threads` is below 1."""
        if threads < 1:
            raise ValueError(f"{threads} scoring threads: at least one is needed, the calling one")
        self._runs: queue.SimpleQueue[_SharedRun | None] = queue.SimpleQueue()
        self._helpers = [
            threading.Thread(target=self._help, name=f"scoring-{number}", daemon=True)
            for number in range(1, threads)
        ]
        for helper in self._helpers:
            helper.start()

    def run(
        self,
        scorings: Sequence[Scoring],
        batch: QueryBatch,
        table: TopTable,
    ) -> list[Candidates]:
        """Returns the candidates of clusters for the queries of `batch`, for `TopTable.merge`.

        Blocks until all is scored. Only reads `table`. Raises the first error of any thread, after
        all threads have stopped. Keeps no view of the pages.
        """
        if not scorings:
            return []
        costs = [_cost(scoring) for scoring in scorings]
        # Waking a helper and waiting for it costs more than a little work does.
        helpers = min(len(self._helpers), sum(costs) // PART_COST_MIN)
        if not helpers and _are_small(scorings):
            parts = [tuple(scorings)]
        else:
            parts = _cut(scorings, costs, 1 + helpers)
        run = _SharedRun(parts, batch, table)
        for _ in range(min(helpers, len(parts) - 1)):
            self._runs.put(run)
        run.work()
        return run.wait()

    def close(self) -> None:
        """Ends the helpers and waits for them. Do not call `run` afterwards. Safe to call twice."""
        for _ in self._helpers:
            self._runs.put(None)
        for helper in self._helpers:
            helper.join()
        self._helpers = []

    def _help(self) -> None:
        while (run := self._runs.get()) is not None:
            run.work()
            del run  # else its results stay in memory until the next run


class _SharedRun:
    """Parts for several threads: each takes the next, until none is left or one has failed."""

    def __init__(
        self,
        parts: list[tuple[Scoring, ...]],
        batch: QueryBatch,
        table: TopTable,
    ) -> None:
        self._parts = parts
        self._batch = batch
        self._floors: Float32 = table.floors(batch.slots)
        self._top_ks: Slots = table.top_ks(batch.slots)
        self._found: list[Candidates | None] = [None] * len(parts)
        self._next = 0
        self._busy = 0  # threads at a part
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def work(self) -> None:
        """Scores parts until none is left."""
        while (number := self._take()) is not None:
            try:
                self._score(number)
            except BaseException as error:  # raised by `wait`, on the calling thread
                self._error = error
            with self._lock:
                self._busy -= 1

    def wait(self) -> list[Candidates]:
        """Returns what all threads found, after `work`. Raises the first error of any thread."""
        self._ended.wait()
        self._parts = []  # a helper that wakes up late keeps this object, and must keep no pages
        if self._error is not None:
            raise self._error
        return [found for found in self._found if found is not None]

    def _take(self) -> int | None:
        with self._lock:
            if self._error is None and self._next < len(self._parts):
                self._next += 1
                self._busy += 1
                return self._next - 1
            if not self._busy:
                self._ended.set()
            return None

    def _score(self, number: int) -> None:
        part = self._parts[number]
        members, batch = part[0].members, self._batch
        if all(one.members is members for one in part):
            batch, every = batch.take(members), np.arange(len(members))
            part = tuple(one._replace(members=every) for one in part)
        else:
            members = np.arange(len(batch.slots))
        known = self._floors[members]
        found, floors = scan(part, batch, known, self._top_ks[members])
        # When two threads write at the same time the lower floor may win: it leaves nothing out.
        self._floors[members] = np.maximum(self._floors[members], floors)
        self._found[number] = found


def _cost(scoring: Scoring) -> int:
    """The cost of scoring, in bytes that could be read from memory in the same time."""
    row_bytes = scoring.pages.row_count * scoring.pages.layout.row_bytes
    return row_bytes * (QUERIES_PER_READ + len(scoring.members)) // QUERIES_PER_READ


def _are_small(scorings: Sequence[Scoring]) -> bool:
    size_bytes = sum(piece.nbytes for scoring in scorings for piece in scoring.pages.pieces)
    return size_bytes <= COPY_BYTES_MAX * len(scorings)


def _cut(
    scorings: Sequence[Scoring], costs: Sequence[int], threads: int
) -> list[tuple[Scoring, ...]]:
    """Returns parts of about the same cost: large clusters are cut, unless for one thread.

    Neighbours that are smaller than a part are one part if they are scored for the same queries.
    """
    part_cost = max(PART_COST_MIN, sum(costs) // (threads * PARTS_PER_THREAD))
    parts: list[tuple[Scoring, ...]] = []
    last_cost = 0
    for scoring, cost in zip(scorings, costs, strict=True):
        count = max(1, round(cost / part_cost)) if threads > 1 else 1
        for pages in cut_pages(scoring.pages, count):
            one = scoring._replace(pages=pages)
            last_cost += cost // count
            if parts and last_cost <= part_cost and parts[-1][0].members is one.members:
                parts[-1] += (one,)
            else:
                parts.append((one,))
                last_cost = cost // count
    return parts


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
            pages.cluster,
            pages.layout,
            row_count,
            tuple(_slices(pages, start, end)),
            pages.first_page + start,
        )


def _slices(pages: ClusterPages, start: int, end: int) -> Iterator[UInt8]:
    first = 0
    for piece in pages.pieces:
        low, high = max(start - first, 0), min(end - first, len(piece))
        if low < high:
            yield piece[low:high]
        first += len(piece)

"""Decides when the next transaction begins and which finished work it commits. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import RUNS_BYTES_MAX, runs_bytes
from carpool.kafka.records import TopicPartition
from carpool.loop.stage import Done
from schemas.topics import is_batch

BLOCKED_WAIT_US = 5_000
"""How long until the next try where finished work cannot be committed yet."""
ABORT_WAIT_US, ABORT_DOUBLINGS_MAX = 100_000, 5
"""Least time from an abort to the next transaction: the cause of the abort may last.

Each further abort in a row doubles it, so many times: brokers that starve get fewer transactions.
"""
TRANSACTION_DONES = 250
TRANSACTION_BYTES = 1024 * 1024
"""Finished work in one transaction. The rest is for the next one, so that each is short.

A transaction over many partitions takes long, however little it contains. So while work is left
over, each transaction takes twice as much as the last one, up to `SCALE_MAX` times these limits and
until one takes `TRANSACTION_US`.
"""
SCALE_MAX = 32
TRANSACTION_US = 500_000
BATCH_DONES = 50
"""Work of class batch in one transaction: it delays urgent work that finishes meanwhile."""
BATCH_PAUSE_US = 100_000
"""Least time between commits of batch work while there is urgent work."""
URGENT_RECENTLY_US = 1_000_000
"""How long after a commit of urgent work batch work commits only once in `BATCH_PAUSE_US`."""
RATE_US = 1_000_000
"""The rate of committed parts is counted over so long, or longer while nothing is committed."""
FULL_RATE = 50
"""Committed parts a second from which the pause is the longest; it grows in proportion to them.

A transaction after a pause takes in what finishes within it: at a low rate that is nothing.
"""
HELD_US = 250_000
"""How long work is held back that the commit metadata cannot list, until it is tried again."""


class Progress(Protocol):
    """The work in flight, as the planner reads it: see `InFlight`."""

    def is_live(self, parts: Iterable[tuple[int, int]]) -> bool: ...

    def after(self, work: Iterable[Done]) -> dict[TopicPartition, Position]: ...


class CommitPlan(NamedTuple):
    """The finished work of one transaction, and the positions that it commits.

    `revoked`: finished work that can no longer be committed, which the planner has removed.
    """

    work: list[Done]
    positions: dict[TopicPartition, Position]
    revoked: list[Done]


class _Finished(NamedTuple):
    """Finished work. It is ordered by its oldest unit: the nearest to the low watermark is first.

    `order`: makes entries with the same unit different.
    """

    unit_id: int
    order: int
    is_batch: bool
    partitions: frozenset[TopicPartition]
    done: Done


class CommitPlanner:
    """Keeps finished work until it is committed. Times are epoch microseconds. Not thread-safe.

    A plan costs time for the work that it takes, not for the work that waits.
    """

    def __init__(self, commit_interval_us: int) -> None:
        """`commit_interval_us`: the longest pause after a transaction that was committed."""
        self._commit_interval_us = commit_interval_us
        self._urgent: list[_Finished] = []  # heaps
        self._batch: list[_Finished] = []
        self._open: list[_Finished] = []  # of the planned transaction
        self._held: list[_Finished] = []
        self._held_until_us = 0
        self._added = 0
        self._urgent_until_us = 0
        self._batch_due_us = 0
        self._pause_us_max = commit_interval_us
        self._rate = 0  # committed parts a second
        self._counted = 0  # for the next rate
        self._counted_since_us = 0
        self._scale = 1
        self._has_rest = False  # the last plan left work over because of its limits
        self._began_us = 0  # of the planned transaction; 0: none is planned
        self._duration_us = 0  # of the last transaction
        self._aborts = 0  # in a row
        self.next_begin_us = 0
        """When the next transaction may begin."""

    @property
    def finished(self) -> int:
        """Finished work that is not committed."""
        return len(self._urgent) + len(self._batch) + len(self._open) + len(self._held)

    @property
    def next_commit_at_us(self) -> int:
        """The earliest commit of work that finishes now; an estimate while a transaction is open.

        An open transaction is assumed to take as long as the last one.
        """
        began_us = self._began_us
        return began_us + self._duration_us + self._pause_us() if began_us else self.next_begin_us

    def add(self, done: Done, partitions: frozenset[TopicPartition]) -> None:
        """Adds finished work. `partitions`: of its records; none if they were revoked."""
        self._added += 1
        first = min((unit_id for unit_id, _ in done.parts), default=0)
        of_batch = all(is_batch(at.topic) for at in partitions)
        self._put([_Finished(first, self._added, of_batch, partitions, done)])

    def _put(self, entries: list[_Finished]) -> None:
        for finished in entries:
            heapq.heappush(self._batch if finished.is_batch else self._urgent, finished)
        entries.clear()

    def plan(self, progress: Progress, now_us: int, *, take_all: bool) -> CommitPlan:
        """Returns the next commit, the oldest work first. Call `blocked` or `ended` after it.

        `take_all`: without limits, as before a revocation. Positions that moved without work, as by
        a transaction marker, wait for urgent work, or as long as batch work.
        """
        is_batch_due = take_all or now_us >= self._batch_due_us
        if not (is_batch_due or self._urgent):
            return CommitPlan([], {}, [])
        if take_all or now_us >= self._held_until_us:
            self._put(self._held)
        has_urgent = bool(self._urgent)
        if has_urgent:
            self._urgent_until_us = now_us + URGENT_RECENTLY_US
        is_urgent_recent = now_us < self._urgent_until_us
        limit = None if take_all else TRANSACTION_DONES * self._scale
        revoked = self._take(self._urgent, progress, limit)
        if is_batch_due:
            few = None if take_all else BATCH_DONES * (1 if is_urgent_recent else self._scale)
            revoked += self._take(self._batch, progress, few)
            self._batch_due_us = now_us + BATCH_PAUSE_US if is_urgent_recent else 0
        self._has_rest = bool(self._urgent or (self._batch and not is_urgent_recent))
        # Batch work commits seldom enough, so urgent work need not pause after it.
        self._pause_us_max = 0 if not has_urgent and is_urgent_recent else self._commit_interval_us
        positions = self._fit(progress, now_us)
        self._began_us = now_us if positions else 0
        return CommitPlan([each.done for each in self._open], positions, revoked)

    def _take(self, heap: list[_Finished], progress: Progress, dones_max: int | None) -> list[Done]:
        """Plans the oldest work within the limits, and at least one. Returns what was revoked."""
        bytes_max = TRANSACTION_BYTES * self._scale
        count = size_bytes = 0
        revoked: list[Done] = []
        while heap and (dones_max is None or count < dones_max):
            done = heap[0].done
            if not progress.is_live(done.parts):
                revoked.append(heapq.heappop(heap).done)
                continue
            size_bytes += sum(len(output.value or b"") for output in done.outputs)
            if count and dones_max is not None and size_bytes > bytes_max:
                break
            self._open.append(heapq.heappop(heap))
            count += 1
        return revoked

    def _fit(self, progress: Progress, now_us: int) -> dict[TopicPartition, Position]:
        """Returns the positions; holds back the newest work that the metadata cannot list.

        Such work waits until a slow record is finished.
        """
        while True:
            positions = progress.after([each.done for each in self._open])
            lengths = {at: runs_bytes(each.metadata) for at, each in positions.items()}
            too_long = {at for at, length in lengths.items() if length > RUNS_BYTES_MAX}
            touching = sorted(each for each in self._open if each.partitions & too_long)
            if not touching:  # an earlier process of this member committed what is too long
                return {at: each for at, each in positions.items() if at not in too_long}
            left_out = touching[len(touching) // 2 :]
            self._held += left_out
            self._held_until_us = now_us + HELD_US
            orders = {each.order for each in left_out}
            self._open = [each for each in self._open if each.order not in orders]

    def blocked(self, now_us: int) -> None:
        """Notes that the planned work cannot be committed yet."""
        self._put(self._open)
        self._began_us = 0
        self.next_begin_us = now_us + BLOCKED_WAIT_US

    def ended(self, now_us: int, *, is_committed: bool) -> None:
        """Notes the end of the planned transaction; work that is not committed is planned again."""
        self._duration_us, self._began_us = now_us - self._began_us, 0
        abort_us = 0 if is_committed else ABORT_WAIT_US << min(self._aborts, ABORT_DOUBLINGS_MAX)
        self._aborts = 0 if is_committed else self._aborts + 1
        if not is_committed:
            self._put(self._open)
        elif self._has_rest and self._duration_us < TRANSACTION_US:
            self._scale = min(2 * self._scale, SCALE_MAX)
        else:
            self._scale = max(self._scale // 2, 1)
        self._count(now_us)
        self._open.clear()
        self.next_begin_us = now_us + max(abort_us, self._pause_us())

    def _count(self, now_us: int) -> None:
        """Counts what was committed; batch work, while work is urgent, has a pause of its own."""
        is_urgent_recent = now_us < self._urgent_until_us
        counted = [each for each in self._open if not (each.is_batch and is_urgent_recent)]
        self._counted += sum(len(each.done.parts) for each in counted)
        took_us = now_us - self._counted_since_us
        if took_us >= RATE_US:
            self._rate = self._counted * 1_000_000 // took_us
            self._counted, self._counted_since_us = 0, now_us

    def rebalanced(self, now_us: int) -> None:
        """Notes that a rebalance may have aborted the last transaction: it need not be waited for.

        Rebalances that abort several in a row are no passing cause.
        """
        if self._aborts == 1:
            self.next_begin_us = now_us

    def _pause_us(self) -> int:
        """Grows with the rate: many records share a transaction, and a lone one never waits."""
        return 0 if self._has_rest else self._pause_us_max * min(self._rate, FULL_RATE) // FULL_RATE

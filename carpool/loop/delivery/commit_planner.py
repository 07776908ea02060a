"""Decides when the next transaction begins and which finished work it commits. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple, Protocol

from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import UNNAMED_BYTES_MAX
from carpool.kafka.records import TopicPartition
from carpool.loop.stage import Done

BLOCKED_WAIT_US = 5_000
"""How long until the next try where finished work cannot be committed yet."""
ABORT_WAIT_US = 100_000
"""Least time from an abort to the next transaction: the cause of the abort may last."""
TRANSACTION_DONES_MAX = 250
TRANSACTION_BYTES_MAX = 1024 * 1024
"""Finished work in one transaction. The rest is for the next one, so that each is short."""
BATCH_DONES_MAX = 50
"""Work of class batch in one transaction: it delays urgent work that finishes meanwhile."""
BATCH_PAUSE_US = 100_000
"""Least time between commits of batch work while there is urgent work."""
URGENT_RECENTLY_US = 1_000_000
"""How long after a commit of urgent work batch work commits only once in `BATCH_PAUSE_US`."""


class Progress(Protocol):
    """The state of work in flight that the planner reads; `InFlight` implements it."""

    def is_batch(self, done: Done) -> bool:
        """See `InFlight.is_batch`."""

    def positions_with(self, finished: Iterable[Done]) -> dict[TopicPartition, Position]:
        """See `InFlight.positions_with`."""

    def nearest_first(self, finished: Iterable[Done]) -> list[Done]:
        """See `InFlight.nearest_first`."""

    def touches(self, done: Done, partitions: Set[TopicPartition]) -> bool:
        """See `InFlight.touches`."""


class CommitPlan(NamedTuple):
    """The finished work of one transaction, and the positions that it commits."""

    work: Sequence[Done]
    positions: dict[TopicPartition, Position]


NO_COMMIT = CommitPlan((), {})


class CommitPlanner:
    """Keeps finished work until it is committed. Times are epoch microseconds. Not thread-safe."""

    def __init__(self, commit_interval_us: int) -> None:
        """`commit_interval_us`: the longest pause between two transactions."""
        self._commit_interval_us = commit_interval_us
        self._finished: deque[Done] = deque()
        self._has_urgent = False
        self._urgent_until_us = 0
        self._batch_due_us = 0
        self._pause_us_max = commit_interval_us
        self._began_us: int | None = None  # of the open transaction
        self._duration_us = 0  # of the last transaction
        self.next_begin_us = 0
        """When the next transaction may begin."""
        self.is_full = False
        """Whether more parts are finished after a slow record than commit metadata can list."""

    @property
    def finished(self) -> int:
        """Finished work that is not committed."""
        return len(self._finished)

    @property
    def next_commit_at_us(self) -> int:
        """The earliest commit of work that finishes now; an estimate while a transaction is open.

        An open transaction is assumed to take as long as the last one.
        """
        began_us = self._began_us
        if began_us is None:
            return self.next_begin_us
        return began_us + self._duration_us + self._pause_us()

    def add(self, done: Done, *, is_batch: bool) -> None:
        """Adds finished work."""
        self._has_urgent |= not is_batch
        self._finished.append(done)

    def remove(self, is_revoked: Callable[[Done], bool]) -> list[Done]:
        """Removes and returns the work for which `is_revoked` is true."""
        revoked: list[Done] = []
        for _ in range(len(self._finished)):
            done = self._finished.popleft()
            (revoked if is_revoked(done) else self._finished).append(done)
        return revoked

    def is_due(self, now_us: int, *, take_all: bool) -> bool:
        """Returns whether `plan` may choose any work now."""
        return take_all or self._has_urgent or now_us >= self._batch_due_us

    def plan(self, progress: Progress, now_us: int, *, take_all: bool) -> CommitPlan:
        """Returns the next commit. `take_all`: without limits, as before a revocation."""
        urgent = [done for done in self._finished if not progress.is_batch(done)]
        if urgent:
            self._urgent_until_us = now_us + URGENT_RECENTLY_US
        is_urgent_recent = now_us < self._urgent_until_us
        work = list(self._finished) if take_all else _first(urgent, TRANSACTION_DONES_MAX)
        if not take_all and now_us >= self._batch_due_us:
            batch = [done for done in self._finished if progress.is_batch(done)]
            work += _first(batch, BATCH_DONES_MAX)
            self._batch_due_us = now_us + BATCH_PAUSE_US if is_urgent_recent else 0
        self._has_urgent = len(urgent) > 0
        # Batch work commits seldom enough, so urgent work need not pause after it.
        self._pause_us_max = 0 if not urgent and is_urgent_recent else self._commit_interval_us
        plan = CommitPlan(work, progress.positions_with(work))
        self.is_full = bool(_too_long(plan.positions))
        return self._fitting(progress) if self.is_full else plan

    def blocked(self, now_us: int) -> None:
        """Notes that finished work cannot be committed yet."""
        self.next_begin_us = now_us + BLOCKED_WAIT_US

    def began(self, now_us: int) -> None:
        """Notes that a transaction was opened."""
        self._began_us = now_us

    def ended(self, now_us: int, *, is_aborted: bool) -> None:
        """Notes that the open transaction has ended."""
        if self._began_us is not None:
            self._duration_us = now_us - self._began_us
        self._began_us = None
        self.next_begin_us = now_us + (ABORT_WAIT_US if is_aborted else self._pause_us())

    def committed(self, work: Sequence[Done]) -> None:
        """Removes work that is committed."""
        ids = {id(done) for done in work}
        self._finished = deque(done for done in self._finished if id(done) not in ids)

    def _pause_us(self) -> int:
        """As long as the last transaction: slow brokers get few large ones, fast ones no delay."""
        return min(self._pause_us_max, self._duration_us)

    def _fitting(self, progress: Progress) -> CommitPlan:
        """Returns the work nearest to the slow records, as much as the metadata can list.

        The other work waits until a slow record is finished.
        """
        work = progress.nearest_first(self._finished)
        positions = progress.positions_with(work)
        while too_long := _too_long(positions):
            touching = [done for done in work if progress.touches(done, too_long)]
            if not touching:  # an earlier process of this member committed all of it
                fitting = {at: each for at, each in positions.items() if at not in too_long}
                return CommitPlan(work, fitting)
            left_out = {id(done) for done in touching[len(touching) // 2 :]}
            work = [done for done in work if id(done) not in left_out]
            positions = progress.positions_with(work)
        return CommitPlan(work, positions)


def _too_long(positions: dict[TopicPartition, Position]) -> set[TopicPartition]:
    return {at for at, each in positions.items() if len(each.metadata) > UNNAMED_BYTES_MAX}


def _first(finished: Sequence[Done], dones_max: int) -> list[Done]:
    """Returns the first of `finished` within the limits of a transaction, and at least one."""
    taken: list[Done] = []
    size_bytes = 0
    for done in finished[:dones_max]:
        size_bytes += sum(len(output.value) for output in done.outputs)
        if taken and size_bytes > TRANSACTION_BYTES_MAX:
            break
        taken.append(done)
    return taken

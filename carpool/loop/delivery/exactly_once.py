"""Exactly once: commits outputs and their offsets in one transaction (ADR 0007).

A transaction is open only while finished work is committed. Order of steps: `plan` → `begin` →
`produce` → `send_offsets` → `commit` → `complete`. Finished work stays in memory until the last
step, so an aborted transaction is sent again without a new search or generation. Offsets come last:
a transaction that the brokers end too early then lacks offsets, not records, so work is repeated
and not lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Literal

import structlog

from carpool.errors import AbortedError, CarpoolError, DeploymentError, FencedError, RetryableError
from carpool.kafka.clients import (
    Membership,
    Position,
    ProducerClient,
    TransactionalProducerClient,
)
from carpool.kafka.commit_metadata import with_instance_id
from carpool.kafka.records import TopicPartition
from carpool.loop.delivery.commit_planner import NO_COMMIT, CommitPlan, CommitPlanner
from carpool.loop.delivery.delivery import IDLE_WAIT_S, Delivery, LoopParts
from carpool.loop.delivery.watchdog import LOOK_S, CallWatchdog
from schemas.topics import is_batch

log = structlog.get_logger()

NAP_S = 0.01
"""How long the thread sleeps while work waits for its commit, whatever is submitted meanwhile.

A wake-up costs more CPU time than most work. A hint may wait for as long.
"""
RETRY_WAIT_S = 0.05
CLOSING_ABORTS_MAX = 3
ABORTS_MIN = 10
ABORTING_US_MAX = 60_000_000
"""After so many aborts in a row, and so long without a commit, the process ends."""
CALL_US_MAX = 15_000_000

Outcome = Literal["ok", "aborted", "fenced", "refused"]


class _GaveUpError(Exception):
    """The time to close is over, or a call took too long."""


class ExactlyOnceDelivery(Delivery):
    """Commits in transactions. Only the owner of the commit lock uses the producer."""

    def __init__(
        self,
        parts: LoopParts,
        *,
        make_producer: Callable[[], TransactionalProducerClient],
        make_hint_producer: Callable[[], ProducerClient],
        instance_id: str,
        commit_interval_ms: int,
        call_us_max: int = CALL_US_MAX,
    ) -> None:
        """`instance_id`: of this member; it goes into the metadata of every commit.

        `call_us_max`: see `CallWatchdog`. The next process of the service ends the transaction.
        """
        super().__init__(parts, make_hint_producer)
        self._make_producer = make_producer
        self._instance_id = instance_id
        self._planner = CommitPlanner(commit_interval_ms * 1_000)
        self._membership: Membership | None = None
        self._is_in_doubt = False
        self._producer: TransactionalProducerClient | None = None
        self._commit_lock = threading.Lock()
        self._is_halted = False
        self._closing_aborts = 0
        self._aborts = 0  # in a row
        self._aborting_since_us = 0
        self._calls = CallWatchdog(parts.clock, parts.fail, us_max=call_us_max)
        self._is_napping = False

    @property
    def backlog(self) -> int:
        return len(self._submitted) + self._planner.finished

    @property
    def next_commit_at_us(self) -> int:
        return self._planner.next_commit_at_us

    # Called from the polling thread.

    def open(self) -> None:
        """Registers the instance id: fences its previous process. Raises as the producer does."""
        if self._producer is None:
            self._producer = self._make_producer()
        self._producer.start()

    def after_poll(self) -> None:
        """Reads the membership, and checks whether a call of the producer takes too long.

        Every rebalance changes the membership, also one between other members. Such a rebalance
        may have aborted a transaction; then the next one need not wait, unless several were.
        """
        is_in_doubt, self._is_in_doubt = self._is_in_doubt, False
        before = self._membership
        self._membership = self._parts.consumer.inner.membership(fresh=is_in_doubt)
        if is_in_doubt and self._membership != before:
            self._planner.rebalanced(self._clock.now_us())
            self._wake.set()
        self._calls.look()

    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> frozenset[int]:
        while not self._commit_lock.acquire(timeout=LOOK_S):
            self._calls.look()
            if self._calls.is_stuck:  # its transaction will not be committed
                return self._in_flight.revoke(partitions)
        try:
            if not lost:
                self.after_poll()
                self._give_up(partitions)
                self._calls.run_watched(lambda: self._try_commit(is_last=True))
            return self._in_flight.revoke(partitions)
        finally:
            self._commit_lock.release()

    def close(self, until_us: int) -> None:
        """See `Delivery.close`. Does not wait for a call that is stuck."""
        if self._calls.is_stuck:
            self._closing.set()
        else:
            self._give_up(self._positions.assigned)
            super().close(until_us)

    def _give_up(self, partitions: frozenset[TopicPartition]) -> None:
        if self.may_give_up:
            self._positions.give_up(partitions)

    # The delivery thread.

    def _wake_up(self) -> None:
        if not self._is_napping:
            self._wake.set()

    def _may_end(self) -> bool:
        """No thread polls at the end, so the brokers would refuse an expelled member forever."""
        is_hopeless = self._is_halted or self._closing_aborts >= CLOSING_ABORTS_MAX
        can_commit = self._membership is not None and self.refusal.reason is None
        has_more = self._positions.has_uncommitted and can_commit
        return is_hopeless or (super()._may_end() and not has_more)

    def _close_producer(self) -> None:
        with self._commit_lock:
            self._is_halted = True
            if self._producer is not None:
                self._producer.close()

    def step(self, wait_s_max: float = IDLE_WAIT_S) -> None:
        """Sends hints, and commits finished work when a commit is due."""
        wait_s = min(wait_s_max, self._wait_s())
        self._is_napping = 0 < wait_s <= NAP_S
        self._wake.wait(wait_s)
        self._is_napping = False
        self._wake.clear()
        self._hints.send()
        if self._clock.now_us() >= self._planner.next_begin_us:
            with self._commit_lock:
                self._try_commit()

    def _wait_s(self) -> float:
        if self._is_halted or not (self.backlog or self._positions.has_uncommitted):
            return IDLE_WAIT_S
        wait_us = self._planner.next_begin_us - self._clock.now_us()
        return min(NAP_S, max(0.0, wait_us / 1_000_000))

    # With the commit lock acquired.

    def _try_commit(self, *, is_last: bool = False) -> None:
        """Commits the due work in one transaction. Reports a failure and keeps its work."""
        if self._is_halted or self._calls.is_stuck:
            return
        plan = self._plan(take_all=is_last or self._closing.is_set())
        began_us = self._clock.now_us()
        if not plan.positions or self._membership is None:
            if self._planner.finished or self._positions.has_uncommitted:
                self._planner.blocked(began_us)
            return
        self._planner.began(began_us)
        try:
            outcome = self._transact(plan, self._membership)
        except _GaveUpError:
            self._is_halted = True
            return
        ended_us = self._clock.now_us()
        self._planner.ended(ended_us, is_aborted=outcome != "ok")
        self._count(outcome, "committed" if outcome == "ok" else outcome)
        if outcome == "refused":
            self._planner.next_begin_us = self.refusal.until_us
        if outcome != "ok":
            self._is_in_doubt = True
            self._closing_aborts += self._closing.is_set()
            if outcome == "aborted":
                self._count_abort(ended_us)
            return
        self._aborts = 0
        self.refusal.passed()
        self._committed(plan)
        self._parts.metrics.delivery.commit_seconds.observe((ended_us - began_us) / 1_000_000)

    def _plan(self, *, take_all: bool) -> CommitPlan:
        while self._submitted:
            done = self._submitted.popleft()
            places = self._in_flight.places(done.parts)  # revoked ones count as batch
            self._planner.add(done, is_batch=all(is_batch(each.at.topic) for each in places))
        now_us = self._clock.now_us()
        if not self._planner.is_due(now_us, take_all=take_all):
            return NO_COMMIT
        plan = self._planner.plan(self._in_flight, now_us, take_all=take_all)
        for done in plan.revoked:
            self._reopen(done)
        return plan

    def _transact(self, plan: CommitPlan, membership: Membership) -> Outcome:
        """The steps of a commit, each with the fault that it guards against."""
        producer = self._producer
        assert producer is not None, "`open` made the producer"
        try:
            # An earlier process with this name goes on: `open` took its transactional id away, and
            # the brokers refuse what it still sends.
            self._insist(producer.begin)
            # A deadline passes while work waits: what is written is what is true now. A crash from
            # here on: no reader of committed records sees these outputs.
            now_us = self._clock.now_us()
            for output in [each for done in plan.work for each in done.outputs_at(now_us)]:
                self._insist(partial(producer.produce, output))
            # A crash between outputs and positions would repeat the work: both are one. Partitions
            # that moved meanwhile: the membership is old, and the brokers refuse it.
            self._insist(partial(producer.send_offsets, self._offsets(plan), membership))
            # A reply that is lost: asked again until the outcome is known, never sent as new work.
            self._insist(producer.commit)
        except AbortedError as error:
            log.warning(
                "a transaction was aborted; its work is sent again",
                error=str(error),
                finished=len(plan.work),
            )
            return self._abort(producer, "aborted")
        except DeploymentError as error:
            self.refusal.refused(error)
            return self._abort(producer, "refused")
        except FencedError as error:
            self._halt(error)
            return "fenced"
        return "ok"

    def _offsets(self, plan: CommitPlan) -> dict[TopicPartition, Position]:
        """Returns the positions, with the owner of each partition that is not given up.

        The next owner fences the one that is named, or counts its death (ADR 0027).
        """
        given_up, own = self._positions.given_up, self._instance_id
        return {
            at: position
            if at in given_up
            else position._replace(metadata=with_instance_id(position.metadata, own))
            for at, position in plan.positions.items()
        }

    def _count_abort(self, now_us: int) -> None:
        """Ends a process whose transactions do not commit any more: it would look healthy."""
        if self._aborts == 0:
            self._aborting_since_us = now_us
        self._aborts += 1
        aborting_us = now_us - self._aborting_since_us
        if self._aborts >= ABORTS_MIN and aborting_us >= ABORTING_US_MAX:
            self._halt(
                FencedError(
                    f"{self._aborts} transactions in a row were aborted within "
                    f"{aborting_us / 1_000_000:.0f} s, and none was committed: restart the service"
                )
            )

    def _abort(self, producer: TransactionalProducerClient, outcome: Outcome) -> Outcome:
        try:
            self._insist(producer.abort)
        except DeploymentError as error:
            self.refusal.refused(error)
            return "refused"
        except (AbortedError, FencedError) as error:
            self._halt(
                FencedError(f"a transaction could not be aborted: {error}; restart the service")
            )
            return "fenced"
        return outcome

    def _committed(self, plan: CommitPlan) -> None:
        self._planner.committed()
        for done in plan.work:
            self._complete(done)
            for output in done.outputs:
                self._parts.metrics.delivery.records_produced.labels(topic=output.topic).inc()
        self._positions.committed(plan.positions)

    def _insist(self, call: Callable[[], None]) -> None:
        """Repeats the call until the brokers reply.

        Raises `_GaveUpError` when the time to close is over, or the call took too long.
        """
        while True:
            try:
                with self._calls.watch():
                    call()
            except RetryableError as error:
                self._count("retried", "retried")
                log.warning("the brokers did not reply; the call is made again", error=str(error))
                if self._is_late():
                    raise _GaveUpError from error
                self._closing.wait(RETRY_WAIT_S)
            else:
                if self._calls.is_stuck:  # another member may own the partitions now
                    raise _GaveUpError
                return

    def _count(self, commit: str, transaction: str) -> None:
        self._parts.metrics.delivery.commits.labels(outcome=commit).inc()
        self._parts.metrics.delivery.transactions.labels(outcome=transaction).inc()

    def _halt(self, error: CarpoolError) -> None:
        self._is_halted = True
        self._parts.fail(error)

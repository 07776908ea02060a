"""Exactly once: commits outputs and their offsets in one transaction (ADR 0007).

`_commit` has all steps of a commit. Finished work stays in memory until the last one, so an aborted
transaction is sent again without a new search or generation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import structlog

from carpool.errors import AbortedError, CarpoolError, DeploymentError, FencedError, RetryableError
from carpool.kafka.clients import Membership, ProducerClient, TransactionalProducerClient
from carpool.kafka.records import TopicPartition
from carpool.loop.delivery.commit_planner import CommitPlanner
from carpool.loop.delivery.delivery import IDLE_WAIT_S, Delivery, LoopParts
from carpool.loop.delivery.watchdog import LOOK_S, CallWatchdog

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


class _GaveUpError(Exception):
    """The time to close is over, or a call took too long."""


class ExactlyOnceDelivery(Delivery):
    """Commits in transactions. Only the owner of the commit lock uses the producer."""

    def __init__(
        self,
        parts: LoopParts,
        *,
        producer: TransactionalProducerClient,
        make_hint_producer: Callable[[], ProducerClient],
        instance_id: str,
        commit_interval_ms: int,
        call_us_max: int = CALL_US_MAX,
    ) -> None:
        """`instance_id`: of this member; it goes into the metadata of every commit.

        `call_us_max`: see `CallWatchdog`. The next process of the service ends the transaction.
        """
        super().__init__(parts, make_hint_producer)
        self._positions.name(instance_id)
        self._producer = producer
        self._planner = CommitPlanner(commit_interval_ms * 1_000)
        self._membership: Membership | None = None
        self._is_in_doubt = False
        self._commit_lock = threading.Lock()
        self._is_halted = False
        self._closing_aborts = 0
        self._aborts = 0  # in a row
        self._aborting_since_us = 0
        self._calls = CallWatchdog(parts.clock, parts.fail, us_max=call_us_max)

    @property
    def backlog(self) -> int:
        return len(self._submitted) + self._planner.finished

    @property
    def next_commit_at_us(self) -> int:
        return self._planner.next_commit_at_us

    # Called from the polling thread.

    def start(self) -> None:
        """Registers the instance id, which fences its previous process, and starts the thread."""
        self._producer.start()
        super().start()

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
                with suppress(_GaveUpError):
                    self._calls.run_watched(lambda: self._commit(take_all=True))
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

    def _may_end(self) -> bool:
        """No thread polls at the end, so the brokers would refuse an expelled member forever."""
        is_hopeless = self._is_halted or self._closing_aborts >= CLOSING_ABORTS_MAX
        has_more = self._positions.has_uncommitted and self._membership is not None
        return is_hopeless or (super()._may_end() and not has_more)

    def _close_producer(self) -> None:
        with self._commit_lock:
            self._is_halted = True
            self._producer.close()

    def step(self, wait_s_max: float = IDLE_WAIT_S) -> None:
        """Sends hints, and commits finished work when a commit is due."""
        if self._has_work:
            wait_us = self._planner.next_begin_us - self._clock.now_us()
            time.sleep(max(0.0, min(wait_us / 1_000_000, NAP_S, wait_s_max)))
        else:
            self._wake.wait(min(IDLE_WAIT_S, wait_s_max))
        self._wake.clear()
        self._hints.send()
        if self._clock.now_us() >= self._planner.next_begin_us:
            with self._commit_lock, suppress(_GaveUpError):
                self._commit(take_all=self._closing.is_set())

    @property
    def _has_work(self) -> bool:
        """Whether anything waits for a commit. Nothing does where another process may own it."""
        is_over = self._is_halted or self._calls.is_stuck
        return not is_over and (self.backlog > 0 or self._positions.has_uncommitted)

    # With the commit lock acquired.

    def _commit(self, *, take_all: bool) -> None:
        """The steps of a commit, each with the fault that it guards against."""
        if not self._has_work:
            return
        began_us, metrics = self._clock.now_us(), self._parts.metrics.delivery
        while self._submitted:
            done = self._submitted.popleft()
            self._planner.add(done, self._in_flight.partitions(done))
        # A slow record: work is committed in any order, and its position lists what is complete
        # above the record. A backlog: the oldest work goes first, in transactions that stay short.
        plan = self._planner.plan(self._in_flight, began_us, take_all=take_all)
        # A partition was revoked: another member does this work, and what shares an output with it
        # is done again.
        self._reopen(plan.revoked)
        # This member is not in its group: another one has the partitions.
        if (membership := self._membership) is None or not plan.positions:
            if self._has_work:
                self._planner.blocked(began_us)
            return
        try:
            # An earlier process with this name goes on: `start` took its transactional id away, and
            # the brokers refuse what it still sends.
            self._insist(self._producer.begin)
            # A deadline passes while work waits: what is written is what is true now. A crash from
            # here on: no reader of committed records sees these outputs.
            now_us = self._clock.now_us()
            outputs = [each for done in plan.work for each in done.outputs_at(now_us)]
            for output in outputs:
                self._insist(partial(self._producer.produce, output))
            # A crash between outputs and positions would repeat the work: both are one, positions
            # last, since a transaction that brokers end too early must lose no outputs. Partitions
            # that moved meanwhile: the membership is old, and the brokers refuse it.
            self._insist(partial(self._producer.send_offsets, plan.positions, membership))
            # A reply that is lost: asked again until the outcome is known, never sent as new work.
            self._insist(self._producer.commit)
        except (AbortedError, DeploymentError, FencedError) as error:
            self._failed(error)
            return
        # An abort until here: nothing counts as complete yet, and all of it is still in memory.
        ended_us = self._clock.now_us()
        self._complete(plan.work)
        self._positions.committed(plan.positions)
        self._planner.ended(ended_us, is_committed=True)
        self.refusal.passed()
        self._aborts = 0
        self._count("ok")
        for output in outputs:
            metrics.records_produced.labels(topic=output.topic).inc()
        metrics.commit_seconds.observe((ended_us - began_us) / 1_000_000)

    def _failed(self, error: CarpoolError) -> None:
        """The steps after a transaction that did not commit: its work is still in memory."""
        try:
            # An open transaction blocks its readers. A fenced process has none any more.
            if not isinstance(error, FencedError):
                self._insist(self._producer.abort)
        except DeploymentError as refused:
            error = refused
        except (AbortedError, FencedError) as stuck:
            error = FencedError(f"a transaction could not be aborted: {stuck}; restart the service")
        # Brokers that starve: the same work is planned again after a pause, which grows.
        now_us = self._clock.now_us()
        self._planner.ended(now_us, is_committed=False)
        # A rebalance made the membership old: `after_poll` renews it, and then ends the pause.
        self._is_in_doubt = True
        self._closing_aborts += self._closing.is_set()
        if isinstance(error, FencedError):  # another process has the name, and repeats the work
            self._count("fenced")
            self._halt(error)
        elif isinstance(error, DeploymentError):  # what the brokers refuse may be mended
            self._count("refused")
            self.refusal.refused(error)
            self._planner.next_begin_us = self.refusal.until_us
        else:
            self._count("aborted")
            log.warning("a transaction was aborted; its work is sent again", error=str(error))
            self._aborting_since_us = self._aborting_since_us if self._aborts else now_us
            self._aborts += 1
            aborting_us = now_us - self._aborting_since_us
            # No transaction commits any more: the process would look healthy.
            if self._aborts >= ABORTS_MIN and aborting_us >= ABORTING_US_MAX:
                self._halt(
                    FencedError(
                        f"{self._aborts} transactions in a row were aborted within "
                        f"{aborting_us // 1_000_000} s, and none was committed: restart the service"
                    )
                )

    def _insist(self, call: Callable[[], None]) -> None:
        """Repeats the call until the brokers reply.

        Raises `_GaveUpError`, after the last commit, when the time to close is over, or the call
        took too long: another member may own the partitions now.
        """
        while True:
            try:
                with self._calls.watch():
                    call()
            except RetryableError as error:
                self._count("retried")
                log.warning("the brokers did not reply; the call is made again", error=str(error))
                if not self._is_late():
                    self._closing.wait(RETRY_WAIT_S)
                    continue
            else:
                if not self._calls.is_stuck:
                    return
            self._is_halted = True
            raise _GaveUpError

    def _count(self, outcome: str) -> None:
        ended = "committed" if outcome == "ok" else outcome
        self._parts.metrics.delivery.commits.labels(outcome=outcome).inc()
        self._parts.metrics.delivery.transactions.labels(outcome=ended).inc()

    def _halt(self, error: CarpoolError) -> None:
        self._is_halted = True
        self._parts.fail(error)

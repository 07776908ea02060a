"""Exactly once: outputs and the offsets they acknowledge in one transaction, opened only to commit
finished work (ADR 0007).

Order of steps: `collect` → `begin` → `send_offsets` → `produce` → `commit` → `complete`. Finished
work stays in memory until the last of them, so that an aborted transaction is sent again without a
new search or generation. Offsets come before records: whoever takes a partition over finds a dead
member's transaction by the offsets that it holds.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import structlog

from carpool.errors import AbortedError, CarpoolError, DeploymentError, FencedError, RetryableError
from carpool.kafka.clients import Membership, Position, ProducerClient, TransactionalProducerClient
from carpool.kafka.commit_metadata import UNNAMED_BYTES_MAX, with_instance_id
from carpool.kafka.records import Output, TopicPartition
from carpool.loop.delivery.delivery import DeliveryContext
from carpool.loop.delivery.hints import Hints
from carpool.loop.delivery.watchdog import LOOK_S, CallWatchdog
from carpool.loop.stage import Done

log = structlog.get_logger()

IDLE_WAIT_S = 0.05
NAP_S = 0.01
"""So long the thread sleeps at once while work waits for its time to be committed, however much
comes: to be woken costs more CPU time than most work. A hint may wait for as long.
"""
RETRY_WAIT_S = 0.05
ABORT_WAIT_US = 100_000
"""How long after an abort the next transaction begins, at the least: what aborted it may last."""
HELD_WAIT_US = 5_000
CLOSING_ABORTS_MAX = 3
CALL_US_MAX = 15_000_000
TRANSACTION_DONES_MAX = 250
TRANSACTION_BYTES_MAX = 1024 * 1024
"""Finished work in one transaction: more take the next one, so that none is open for long."""
BATCH_DONES_MAX = 50
"""Of it of the class batch, behind which other work that has just been finished would wait."""
BATCH_PAUSE_US = 100_000
URGENT_LATELY_US = 1_000_000
"""Work of the class batch commits every so often where other work was finished lately: a
transaction without it is short, and what is urgent seldom finds one open.
"""

Outcome = Literal["ok", "aborted", "fenced", "refused"]


class _GaveUpError(Exception):
    """The time to close is over."""


class ExactlyOnceDelivery:
    """Commits in transactions. `submit` and `hint` are thread-safe; transactions are the commit
    lock's.
    """

    def __init__(
        self,
        wiring: DeliveryContext,
        *,
        make_producer: Callable[[], TransactionalProducerClient],
        make_hint_producer: Callable[[], ProducerClient],
        instance_id: str,
        commit_interval_ms: int,
        call_us_max: int = CALL_US_MAX,
    ) -> None:
        """`instance_id`: this member's; it goes into the metadata of every commit.

        `call_us_max`: how long one call of the producer may take, longer than its own time-out.
        librdkafka's may never come back (its issues 5456 and 5511: offsets for a coordinator that
        is gone): then the service ends, and its next life ends the transaction.
        """
        self._ledger = wiring.ledger
        self._consumer = wiring.consumer
        self._clock = wiring.clock
        self._metrics = wiring.metrics
        self._observer = wiring.observer
        self._reoffer = wiring.reoffer
        self._fail = wiring.fail
        self._make_producer = make_producer
        self._instance_id = instance_id
        self._commit_interval_us = commit_interval_ms * 1_000
        self._hints = Hints(make_hint_producer, wiring.metrics)
        self._submitted: deque[Done] = deque()
        self._finished: deque[Done] = deque()  # taken from `_submitted`, not committed
        self._membership: Membership | None = None
        self._is_in_doubt = False
        self._producer: TransactionalProducerClient | None = None
        self._commit_lock = threading.Lock()
        self._next_commit_us = 0
        self._began_us: int | None = None  # the transaction that is open
        self._lasts_us = 0
        self._is_halted = False
        self._is_full = False
        self._has_urgent = False
        self._interval_us = self._commit_interval_us
        self._batch_due_us = 0
        self._urgent_until_us = 0
        self._aborts_at_the_end = 0
        self._calls = CallWatchdog(wiring.clock, wiring.fail, us_max=call_us_max)
        self._wake = threading.Event()
        self._is_napping = False
        self._closing = threading.Event()
        self._stop_by_us: int | None = None
        self._thread = threading.Thread(target=self._run, name="delivery", daemon=True)

    # Called from any thread.

    def submit(self, done: Done) -> None:
        """See `Delivery.submit`."""
        self._submitted.append(done)
        if not self._is_napping:
            self._wake.set()

    def hint(self, output: Output) -> None:
        """See `Delivery.hint`."""
        if self._hints.add(output) and not self._is_napping:
            self._wake.set()

    @property
    def backlog(self) -> int:
        """See `Delivery.backlog`."""
        return len(self._submitted) + len(self._finished)

    @property
    def next_commit_at_us(self) -> int:
        """See `Delivery.next_commit_at_us`: with the transaction after the one that is open, which
        lasts about as long as the last.
        """
        began_us = self._began_us
        return (
            self._next_commit_us
            if began_us is None
            else began_us + self._lasts_us + self._pause_us()
        )

    @property
    def is_full(self) -> bool:
        """See `Delivery.is_full`."""
        return self._is_full

    # Called from the polling thread.

    def start(self) -> None:
        """Fences the previous life of this instance, and starts the thread.

        Raises as the producer's `start` does.
        """
        self._producer = self._make_producer()
        self._producer.start()
        self._thread.start()

    def attend(self) -> None:
        """Looks up the membership, which changes with every rebalance, also with those of others:
        that may abort a transaction, which then need not wait for what else might have aborted
        it.
        """
        is_in_doubt, self._is_in_doubt = self._is_in_doubt, False
        before, self._membership = self._membership, self._consumer.membership(fresh=is_in_doubt)
        if is_in_doubt and self._membership != before:
            self._next_commit_us = self._clock.now_us()
            self._wake.set()
        self._calls.look()

    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> frozenset[int]:
        """See `Delivery.revoked`."""
        while not self._commit_lock.acquire(timeout=LOOK_S):
            self._calls.look()
            if self._calls.is_stuck:  # whose transaction will not be committed
                return self._ledger.revoke(partitions)
        try:
            if not lost:
                self.attend()
                self._calls.run_watched(lambda: self._try_commit(is_last=True))
            return self._ledger.revoke(partitions)
        finally:
            self._commit_lock.release()

    def close(self, until_us: int) -> bool:
        """See `Delivery.close`."""
        self._stop_by_us = until_us
        self._closing.set()
        self._wake.set()
        if self._calls.is_stuck:
            return False
        self._thread.join(max(0.0, (until_us - self._clock.now_us()) / 1_000_000) + 5.0)
        return not self.backlog

    # The delivery thread.

    def _run(self) -> None:
        try:
            while not (self._closing.is_set() and self._may_end()):
                self.step()
        except Exception as error:  # the thread must not die in silence: the loop ends the process
            log.exception("delivery failed")
            self._fail(CarpoolError(f"delivery failed: {error!r}"))
        finally:
            with self._commit_lock:
                self._is_halted = True
                self._hints.close()
                if self._producer is not None:
                    self._producer.close()

    def _may_end(self) -> bool:
        """Nobody polls at the end: a member that the group went on without would be refused for
        ever.
        """
        is_hopeless = self._is_halted or self._aborts_at_the_end >= CLOSING_ABORTS_MAX
        return is_hopeless or self._is_late() or not self.backlog

    def step(self) -> None:
        """Does one round: sends hints, commits what is finished when it is time."""
        wait_s = self._wait_s()
        self._is_napping = 0 < wait_s <= NAP_S
        self._wake.wait(wait_s)
        self._is_napping = False
        self._wake.clear()
        self._hints.send()
        if self._clock.now_us() >= self._next_commit_us:
            with self._commit_lock:
                self._try_commit()

    def _wait_s(self) -> float:
        if self._is_halted or not (
            self._submitted or self._finished or self._ledger.has_uncommitted
        ):
            return IDLE_WAIT_S
        return min(NAP_S, max(0.0, (self._next_commit_us - self._clock.now_us()) / 1_000_000))

    # With the commit lock held.

    def _try_commit(self, *, is_last: bool = False) -> None:
        """Commits what is finished, in one transaction. Reports what ends the service, and leaves
        the rest for the next time.
        """
        if self._is_halted or self._calls.is_stuck:
            return
        work, positions = self._collect(is_last=is_last or self._closing.is_set())
        began_us = self._clock.now_us()
        if not positions or self._membership is None:
            if (
                self._finished or self._ledger.has_uncommitted
            ):  # which cannot be committed yet: there is no hurry
                self._next_commit_us = began_us + HELD_WAIT_US
            return
        self._began_us = began_us
        try:
            outcome = self._transact(work, positions, self._membership)
        except _GaveUpError:
            self._is_halted = True
            return
        finally:
            self._began_us = None
        ended_us = self._clock.now_us()
        self._lasts_us = ended_us - began_us
        self._metrics.delivery.commits.labels(outcome=outcome).inc()
        self._metrics.delivery.transactions.labels(
            outcome="committed" if outcome == "ok" else outcome
        ).inc()
        self._next_commit_us = ended_us + (
            ABORT_WAIT_US if outcome == "aborted" else self._pause_us()
        )
        if outcome != "ok":
            self._is_in_doubt = True
            self._aborts_at_the_end += self._closing.is_set()
            return
        self._complete(work, positions)
        self._metrics.delivery.commit_seconds.observe((ended_us - began_us) / 1_000_000)
        self._observer.committed(began_us)

    def _pause_us(self) -> int:
        """As the last transaction, at most the interval: slow brokers get few and large ones, at
        fast ones nothing waits long.
        """
        return min(self._interval_us, self._lasts_us)

    def _collect(self, *, is_last: bool) -> tuple[Sequence[Done], dict[TopicPartition, Position]]:
        """Returns the finished work that commits next, and where that takes the partitions.
        `is_last`: all there is.
        """
        while self._submitted:
            done = self._submitted.popleft()
            self._has_urgent |= not self._ledger.is_batch(done)
            self._finished.append(done)
        now_us = self._clock.now_us()
        is_batch_due = is_last or now_us >= self._batch_due_us
        if not (self._has_urgent or is_batch_due):
            return (), {}
        self._drop_dead()
        urgent = [done for done in self._finished if not self._ledger.is_batch(done)]
        if urgent:
            self._urgent_until_us = now_us + URGENT_LATELY_US
        work: Sequence[Done] = list(self._finished) if is_last else _first(urgent)
        if is_batch_due and not is_last:
            work = [
                *work,
                *_first(
                    [done for done in self._finished if self._ledger.is_batch(done)],
                    BATCH_DONES_MAX,
                ),
            ]
            self._batch_due_us = now_us + BATCH_PAUSE_US if now_us < self._urgent_until_us else 0
        self._has_urgent = len(urgent) > 0
        # What is urgent need not wait after a transaction of batch work, which come seldom enough.
        self._interval_us = (
            0 if not urgent and now_us < self._urgent_until_us else self._commit_interval_us
        )
        positions = self._ledger.positions_with(work)
        self._is_full = bool(self._too_long(positions))
        if self._is_full:
            work, positions = self._fitting()
        return work, positions

    def _drop_dead(self) -> None:
        """Discards finished work of partitions that are no longer ours; what survives of it is
        worked on again.
        """
        for _ in range(len(self._finished)):
            done = self._finished.popleft()
            if self._ledger.is_live(done):
                self._finished.append(done)
                continue
            survivors = self._ledger.survivors(done)
            self._metrics.delivery.done_discarded.inc(len(done.parts) - len(survivors))
            self._reoffer(survivors)

    def _fitting(self) -> tuple[Sequence[Done], dict[TopicPartition, Position]]:
        """What is complete above a slow record may be more than a commit can say. Returns, of all
        that is finished, what is next to the slow records; the rest waits for those.
        """
        work = self._ledger.nearest_first(self._finished)
        positions = self._ledger.positions_with(work)
        while full := self._too_long(positions):
            touching = [done for done in work if self._ledger.touches(done, full)]
            if not touching:  # what an earlier life committed already
                return work, {at: position for at, position in positions.items() if at not in full}
            left_out = {id(done) for done in touching[len(touching) // 2 :]}
            work = [done for done in work if id(done) not in left_out]
            positions = self._ledger.positions_with(work)
        return work, positions

    def _too_long(self, positions: dict[TopicPartition, Position]) -> set[TopicPartition]:
        return {
            at for at, position in positions.items() if len(position.metadata) > UNNAMED_BYTES_MAX
        }

    def _named(self, position: Position) -> Position:
        return position._replace(metadata=with_instance_id(position.metadata, self._instance_id))

    def _transact(
        self,
        work: Sequence[Done],
        positions: dict[TopicPartition, Position],
        membership: Membership,
    ) -> Outcome:
        producer = self._producer
        assert producer is not None, "the transactional id is taken at the start"
        try:
            self._insist(producer.begin)
            offsets = {at: self._named(position) for at, position in positions.items()}
            self._insist(partial(producer.send_offsets, offsets, membership))
            now_us = self._clock.now_us()
            for done in work:
                for output in done.outputs_at(now_us):
                    self._insist(partial(producer.produce, output))
            self._insist(producer.commit)
        except AbortedError as error:
            log.warning(
                "a transaction was aborted; its work is sent again",
                error=str(error),
                finished=len(work),
            )
            return self._abort(producer, "aborted")
        except DeploymentError as error:
            self._halt(error)
            return self._abort(producer, "refused")
        except FencedError as error:
            self._halt(error)
            return "fenced"
        return "ok"

    def _abort(self, producer: TransactionalProducerClient, outcome: Outcome) -> Outcome:
        try:
            self._insist(producer.abort)
        except (AbortedError, DeploymentError, FencedError) as error:
            self._halt(
                FencedError(
                    f"a transaction could not even be aborted: {error}; restart the service"
                )
            )
            return "fenced"
        return outcome

    def _complete(self, work: Sequence[Done], positions: dict[TopicPartition, Position]) -> None:
        committed = {id(done) for done in work}
        self._finished = deque(done for done in self._finished if id(done) not in committed)
        for done in work:
            self._ledger.complete(done)
            self._observer.completed(done)
            for output in done.outputs:
                self._metrics.delivery.records_produced.labels(topic=output.topic).inc()
        self._ledger.committed(positions)

    def _insist(self, call: Callable[[], None]) -> None:
        """Makes the call until it goes through. Raises `_GaveUpError` when the time to close is
        over, or it took too long.
        """
        while True:
            try:
                with self._calls.watch():
                    call()
            except RetryableError as error:
                self._metrics.delivery.commits.labels(outcome="retried").inc()
                self._metrics.delivery.transactions.labels(outcome="retried").inc()
                log.warning("the brokers did not answer; asked again", error=str(error))
                if self._is_late():
                    raise _GaveUpError from error
                self._closing.wait(error.retry_after_s or RETRY_WAIT_S)
            else:
                if self._calls.is_stuck:  # others may own the partitions by now
                    raise _GaveUpError
                return

    def _halt(self, error: CarpoolError) -> None:
        self._is_halted = True
        self._fail(error)

    def _is_late(self) -> bool:
        return self._stop_by_us is not None and self._clock.now_us() >= self._stop_by_us


def _first(finished: Sequence[Done], most: int = TRANSACTION_DONES_MAX) -> list[Done]:
    """Returns as many of `finished`, in order, as one transaction takes, and at least one of
    them.
    """
    taken: list[Done] = []
    size_bytes = 0
    for done in finished[:most]:
        size_bytes += sum(len(output.value) for output in done.outputs)
        if taken and size_bytes > TRANSACTION_BYTES_MAX:
            break
        taken.append(done)
    return taken

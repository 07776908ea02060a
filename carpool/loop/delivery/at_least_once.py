"""At least once: first writes outputs, then commits the offsets that they acknowledge.

`step` has all steps of a commit, which do not wait for each other.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from carpool.errors import CarpoolError, DeploymentError, FencedError
from carpool.kafka.clients import Position, ProducerClient
from carpool.kafka.commit_metadata import RUNS_BYTES_MAX, runs_bytes
from carpool.kafka.records import Output, TopicPartition
from carpool.loop.delivery.delivery import IDLE_WAIT_S, Delivery, LoopParts
from carpool.loop.stage import Done

log = structlog.get_logger()

SENDING_WAIT_S = 0.002
COMMIT_RETRY_US = 500_000


@dataclass(slots=True)
class _SentWork:
    """Finished work of which `unacknowledged` outputs are not confirmed yet.

    `is_dropped`: one of its partitions has moved away, so its other outputs are not sent.
    """

    done: Done
    unacknowledged: int
    is_dropped: bool = False


class AtLeastOnceDelivery(Delivery):
    """Writes outputs, then commits."""

    def __init__(
        self,
        parts: LoopParts,
        *,
        make_producer: Callable[[], ProducerClient],
        make_hint_producer: Callable[[], ProducerClient],
        commit_interval_ms: int,
    ) -> None:
        super().__init__(parts, make_hint_producer)
        self._make_producer = make_producer
        self._commit_interval_us = commit_interval_ms * 1_000
        self._commit_lock = threading.Lock()
        self._requested: dict[TopicPartition, Position] = {}
        self._producer = make_producer()
        self._to_send: deque[tuple[_SentWork, Output]] = deque()
        self._unacknowledged = 0
        self._must_rebuild = False
        self._next_commit_us = 0

    @property
    def backlog(self) -> int:
        return len(self._submitted) + len(self._to_send) + self._unacknowledged

    # Called from the polling thread.

    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> frozenset[int]:
        """See `Delivery.revoked`. A commit in progress ends first."""
        with self._commit_lock:
            self._requested = {}  # the consumer dropped a request that it had not begun
            if not lost:
                self._commit_now()
            return self._in_flight.revoke(partitions)

    # The delivery thread.

    def _close_producer(self) -> None:
        if left := self._producer.close(1.0):
            log.warning(
                "outputs not written at the end; they are made again after the restart",
                outputs=left,
            )

    def step(self, wait_s_max: float = IDLE_WAIT_S) -> None:
        """The steps of a commit, each with the fault that it guards against."""
        if self.refusal.is_waiting or not (self.backlog or self._hints):
            self._wake.wait(min(wait_s_max, self._idle_wait_s()))
        self._wake.clear()
        self._hints.send()
        # A deadline passes while work waits: what is true now is written.
        self._take_submitted()
        # A partition was revoked: another member does its work, and what shared an output with it
        # is done again. A crash between outputs and positions: outputs come first, so work is
        # repeated, under the same record ids, and not lost.
        self._send()
        # A write fails: the output is sent again. A part is complete when all of its outputs are
        # acknowledged (`_reported`), so no position passes over one that is not.
        self._producer.poll(SENDING_WAIT_S if self._unacknowledged else 0)
        # A producer that fails for good: the reports of its outputs fail, and a new one sends them.
        if self._must_rebuild:
            self._producer.close(0)
            self._producer, self._must_rebuild = self._make_producer(), False
        # A commit fails: these positions are still uncommitted, and in the next one (`_replied`).
        if self._positions.has_uncommitted and self._clock.now_us() >= self._next_commit_us:
            self._commit()

    def _idle_wait_s(self) -> float:
        if self._requested or not self._positions.has_uncommitted:
            return IDLE_WAIT_S
        return max(0.0, (self._next_commit_us - self._clock.now_us()) / 1_000_000)

    def _take_submitted(self) -> None:
        while self._submitted:
            done = self._submitted.popleft()
            done = replace(done, outputs=done.outputs_at(self._clock.now_us()), late=None)
            work = _SentWork(done, len(done.outputs))
            if not done.outputs:
                self._complete((done,))
            self._to_send.extend((work, output) for output in done.outputs)

    def _send(self) -> None:
        while self._to_send and not self.refusal.is_waiting:
            work, output = self._to_send[0]
            if not work.is_dropped and not self._in_flight.is_live(work.done.parts):
                work.is_dropped = True
                self._reopen((work.done,))
            if work.is_dropped:
                self._to_send.popleft()
                continue
            if not self._producer.produce(output, functools.partial(self._reported, work, output)):
                return  # its queue is full: acknowledgements make room
            self._to_send.popleft()
            self._unacknowledged += 1

    def _reported(self, work: _SentWork, output: Output, error: CarpoolError | None) -> None:
        self._unacknowledged -= 1
        if error is None:
            self._parts.metrics.delivery.records_produced.labels(topic=output.topic).inc()
            work.unacknowledged -= 1
            if work.unacknowledged == 0:
                self._complete((work.done,))
            if not self.backlog:
                self.refusal.passed()
            return
        self._must_rebuild |= isinstance(error, FencedError)
        if isinstance(error, DeploymentError):
            self.refusal.refused(error)
        else:
            log.warning(
                "a record was not written; it is sent again", topic=output.topic, error=str(error)
            )
        self._to_send.append((work, output))

    def _commit(self) -> None:
        """Requests a commit of the moved positions, unless one is in progress."""
        with self._commit_lock:
            if self._requested:
                return
            offsets = self._requested = self._to_commit()
            if offsets:
                self._parts.consumer.inner.commit(
                    offsets, functools.partial(self._replied, offsets, self._clock.now_us())
                )

    def _commit_now(self) -> None:
        """Commits the moved positions. Blocks the polling thread."""
        if not (offsets := self._to_commit()):
            return
        began_us = self._clock.now_us()
        try:
            self._parts.consumer.inner.commit_now(offsets)
        except CarpoolError as error:
            self._replied(offsets, began_us, error)
        else:
            self._replied(offsets, began_us, None)

    def _to_commit(self) -> dict[TopicPartition, Position]:
        self._next_commit_us = self._clock.now_us() + self._commit_interval_us
        # Metadata that is too long may be dropped: its work is repeated after a crash. The loop
        # stops its intake long before.
        return {
            at: position
            if runs_bytes(position.metadata) <= RUNS_BYTES_MAX
            else position._replace(metadata="")
            for at, position in self._positions.after(()).items()
        }

    def _replied(
        self, offsets: dict[TopicPartition, Position], began_us: int, error: CarpoolError | None
    ) -> None:
        """Notes the outcome of a commit. Called by the polling thread.

        After a failure, the next commit includes these offsets.
        """
        if self._requested is offsets:
            self._requested = {}
        now_us, metrics = self._clock.now_us(), self._parts.metrics.delivery
        if error is None:
            self._positions.committed(offsets)
            metrics.commits.labels(outcome="ok").inc()
            metrics.commit_seconds.observe((now_us - began_us) / 1_000_000)
            return
        # The next poll of a fenced member reports it; another member repeats its work.
        self._next_commit_us = now_us + COMMIT_RETRY_US
        if isinstance(error, DeploymentError):
            self.refusal.refused(error)
            self._next_commit_us = self.refusal.until_us
        outcome = "fenced" if isinstance(error, FencedError) else "retried"
        metrics.commits.labels(outcome=outcome).inc()
        log.warning("a commit failed; it is tried again", error=str(error))

"""At least once: outputs first, then the offsets they acknowledge, on a thread of its own.

Outputs are written and acknowledged by the brokers; then their parts count as complete; then the
moved offsets are committed, with what is complete above them in the metadata. A crash between the
two writes an output again, under the same record id. Order of steps: `send` → `acknowledged` →
`complete` → `commit`.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog

from carpool.errors import CarpoolError, DeploymentError, FencedError, RetryableError
from carpool.kafka.clients import Position, ProducerClient
from carpool.kafka.commit_metadata import UNNAMED_BYTES_MAX
from carpool.kafka.records import Output, TopicPartition
from carpool.loop.delivery.delivery import DeliveryContext
from carpool.loop.delivery.hints import Hints
from carpool.loop.stage import Done

log = structlog.get_logger()

IDLE_WAIT_S = 0.05
SENDING_WAIT_S = 0.002
COMMIT_RETRY_US = 500_000


@dataclass(slots=True)
class _Sending:
    """Finished work on its way to the brokers; `unacknowledged` outputs are not confirmed yet."""

    done: Done
    unacknowledged: int = field(init=False)

    def __post_init__(self) -> None:
        self.unacknowledged = len(self.done.outputs)


class AtLeastOnceDelivery:
    """Writes outputs, then commits. `submit` and `hint` are thread-safe; all else is its own
    thread's.
    """

    def __init__(
        self,
        wiring: DeliveryContext,
        *,
        make_producer: Callable[[], ProducerClient],
        make_hint_producer: Callable[[], ProducerClient],
        commit_interval_ms: int,
    ) -> None:
        self._ledger = wiring.ledger
        self._consumer = wiring.consumer
        self._clock = wiring.clock
        self._metrics = wiring.metrics
        self._observer = wiring.observer
        self._reoffer = wiring.reoffer
        self._fail = wiring.fail
        self._make_producer = make_producer
        self._commit_interval_us = commit_interval_ms * 1_000
        self._hints = Hints(make_hint_producer, wiring.metrics)
        self._submitted: deque[Done] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._stop_by_us: int | None = None
        self._commit_lock = threading.Lock()
        self._asked: dict[TopicPartition, Position] = {}
        self._producer: ProducerClient | None = None
        self._to_send: deque[tuple[_Sending, Output]] = deque()
        self._in_flight = 0
        self._must_rebuild = False
        self._next_commit_us = 0
        self._thread = threading.Thread(target=self._run, name="delivery", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def submit(self, done: Done) -> None:
        """See `Delivery.submit`."""
        self._submitted.append(done)
        self._wake.set()

    def hint(self, output: Output) -> None:
        """See `Delivery.hint`."""
        if self._hints.add(output):
            self._wake.set()

    def attend(self) -> None:
        """Nothing: the consumer commits from inside its poll."""

    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> frozenset[int]:
        """See `Delivery.revoked`. A commit that is under way comes before its own."""
        with self._commit_lock:
            # What was asked for and not begun was dropped; what is under way comes before the
            # commit below.
            self._ledger.not_committed(self._asked)
            self._asked = {}
            if not lost:
                self._commit_now()
            return self._ledger.revoke(partitions)

    def close(self, until_us: int) -> bool:
        """See `Delivery.close`."""
        self._stop_by_us = until_us
        self._closing.set()
        self._wake.set()
        self._thread.join(max(0.0, (until_us - self._clock.now_us()) / 1_000_000) + 5.0)
        return not (self._submitted or self._to_send or self._in_flight)

    @property
    def backlog(self) -> int:
        """Finished work and outputs that are not acknowledged yet."""
        return len(self._submitted) + len(self._to_send) + self._in_flight

    @property
    def next_commit_at_us(self) -> int:
        """See `Delivery.next_commit_at_us`: nothing waits for a commit."""
        return 0

    @property
    def is_full(self) -> bool:
        """Never: what a commit cannot say is done again after a crash."""
        return False

    # What follows runs on the delivery thread.

    def _run(self) -> None:
        try:
            self._producer = self._make_producer()
            while not self._finished():
                self.step()
            left = self._producer.close(1.0)
            self._hints.close()
            if left:
                log.warning(
                    "outputs not written at the end; they are made again after the restart",
                    outputs=left,
                )
        except Exception as error:  # the thread must not die in silence: the loop ends the process
            log.exception("delivery failed")
            self._fail(
                error
                if isinstance(error, CarpoolError)
                else CarpoolError(f"delivery failed: {error!r}")
            )

    def _finished(self) -> bool:
        if not self._closing.is_set():
            return False
        late = self._stop_by_us is not None and self._clock.now_us() >= self._stop_by_us
        return late or not (self._submitted or self._to_send or self._in_flight)

    def step(self) -> None:
        """Does one round: take what is finished, send it, serve acknowledgements, commit when it is
        time.
        """
        if not (self._submitted or self._hints or self._to_send or self._in_flight):
            self._wake.wait(self._idle_wait_s())
        self._wake.clear()
        self._take_submitted()
        self._hints.send()
        self._send()
        producer = self._producer
        assert producer is not None, "the producer is made before the first step"
        producer.poll(SENDING_WAIT_S if self._in_flight else 0)
        if self._must_rebuild:
            self._rebuild()
        if self._ledger.has_uncommitted and self._clock.now_us() >= self._next_commit_us:
            self._commit()

    def _idle_wait_s(self) -> float:
        if not self._ledger.has_uncommitted:
            return IDLE_WAIT_S
        return min(IDLE_WAIT_S, max(0.0, (self._next_commit_us - self._clock.now_us()) / 1_000_000))

    def _take_submitted(self) -> None:
        while self._submitted:
            done = self._submitted.popleft()
            if not self._ledger.is_live(done):
                survivors = self._ledger.survivors(done)
                self._metrics.delivery.done_discarded.inc(len(done.parts) - len(survivors))
                self._reoffer(survivors)
                continue
            done = replace(done, outputs=done.outputs_at(self._clock.now_us()), late=None)
            sending = _Sending(done)
            if not done.outputs:
                self._complete(done)
            self._to_send.extend((sending, output) for output in done.outputs)

    def _send(self) -> None:
        producer = self._producer
        assert producer is not None, "the producer is made before the first step"
        while self._to_send:
            sending, output = self._to_send[0]
            if not producer.produce(output, functools.partial(self._delivered, sending, output)):
                return  # its queue is full: acknowledgements make room
            self._to_send.popleft()
            self._in_flight += 1

    def _delivered(self, sending: _Sending, output: Output, error: CarpoolError | None) -> None:
        self._in_flight -= 1
        if error is None:
            self._metrics.delivery.records_produced.labels(topic=output.topic).inc()
            sending.unacknowledged -= 1
            if sending.unacknowledged == 0:
                self._complete(sending.done)
            return
        if isinstance(error, DeploymentError):
            self._fail(error)
            return
        self._must_rebuild |= isinstance(error, FencedError)
        log.warning(
            "a record was not taken; it is sent again", topic=output.topic, error=str(error)
        )
        self._to_send.append((sending, output))

    def _complete(self, done: Done) -> None:
        self._ledger.complete(done)
        self._observer.completed(done)

    def _rebuild(self) -> None:
        """Replaces a Kafka producer that failed for good; what it had in flight comes back through
        its reports.
        """
        assert self._producer is not None, "the producer is made before the first step"
        self._producer.close(0)
        self._producer = self._make_producer()
        self._must_rebuild = False

    def _commit(self) -> None:
        """Asks for a commit of what moved, unless one is under way. The consumer's polling thread
        reports on it.
        """
        with self._commit_lock:
            if self._asked:
                return
            offsets = self._asked = self._to_commit()
            if offsets:
                self._consumer.commit(
                    offsets, functools.partial(self._committed, offsets, self._clock.now_us())
                )

    def _committed(
        self, offsets: dict[TopicPartition, Position], asked_us: int, error: CarpoolError | None
    ) -> None:
        """The outcome of a commit. A failed one is tried again with whatever has moved since;
        called by the polling thread.
        """
        if self._asked is offsets:
            self._asked = {}
        self._reckon(offsets, asked_us, error)

    def _commit_now(self) -> None:
        """Commits what moved, blocking, on the polling thread."""
        offsets, asked_us = self._to_commit(), self._clock.now_us()
        if not offsets:
            return
        try:
            self._consumer.commit_now(offsets)
        except (RetryableError, FencedError) as error:
            self._reckon(offsets, asked_us, error)
        else:
            self._reckon(offsets, asked_us, None)

    def _to_commit(self) -> dict[TopicPartition, Position]:
        self._next_commit_us = self._clock.now_us() + self._commit_interval_us
        # At least once may forget what is complete above the watermark; the loop stops its intake
        # long before.
        return {
            at: position
            if len(position.metadata) <= UNNAMED_BYTES_MAX
            else position._replace(metadata="")
            for at, position in self._ledger.to_commit().items()
        }

    def _reckon(
        self, offsets: dict[TopicPartition, Position], asked_us: int, error: CarpoolError | None
    ) -> None:
        now_us = self._clock.now_us()
        if error is None:
            self._metrics.delivery.commits.labels(outcome="ok").inc()
            self._metrics.delivery.commit_seconds.observe((now_us - asked_us) / 1_000_000)
            self._observer.committed(asked_us)
            return
        # A member that the group went on without learns of it in its next poll, and its work is
        # repeated elsewhere.
        self._ledger.not_committed(offsets)
        self._next_commit_us = now_us + COMMIT_RETRY_US
        self._metrics.delivery.commits.labels(
            outcome="fenced" if isinstance(error, FencedError) else "retried"
        ).inc()
        log.warning("a commit failed; it is tried again", error=str(error))

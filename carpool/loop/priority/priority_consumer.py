"""A consumer that hands out records of several topics in fair turns: a `ConsumerClient` around
another.

What comes from the brokers is sorted into a queue a topic (`carpool.loop.priority.intake_queues`),
so that an urgent record never stands behind those of another topic that were fetched before it. A
topic whose queue is full is paused. Records in the queues are not taken in: they are forgotten with
their partition, and read again by its next owner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from carpool.clock import Clock
from carpool.kafka.clients import (
    CommitResult,
    ConsumerClient,
    Membership,
    Position,
    RebalanceListener,
)
from carpool.kafka.records import Message, TopicPartition
from carpool.loop.priority.adaptive_rate_limit import AdaptiveRateLimit
from carpool.loop.priority.cpu_wait import CpuWait
from carpool.loop.priority.intake_queues import IntakeQueues, PriorityClass, cost_bytes

SIFT_MAX = 250
"""Records that are sorted before one is handed out: a few milliseconds."""


class PriorityConsumer:
    """Implements `ConsumerClient`. All calls come from the polling thread, but `commit`."""

    def __init__(
        self,
        consumer: ConsumerClient,
        classes: tuple[PriorityClass, ...],
        *,
        held: Callable[[], Mapping[str, int]],
        clock: Clock,
        cpu_wait_us: Callable[[], float | None] | None = None,
    ) -> None:
        """`held` gives the parts that the service holds, by topic; `cpu_wait_us` how long the
        polling thread waited for a CPU, on average since the last call.
        """
        self._clock = clock
        self._cpu_wait_us = cpu_wait_us or CpuWait().mean_us
        self._paces = {
            each.topic: AdaptiveRateLimit(each.cpu_wait_us_max)
            for each in classes
            if each.cpu_wait_us_max
        }
        self._consumer = consumer
        self._queues = IntakeQueues(classes)
        self._held = held
        self._stopped: frozenset[str] = frozenset()
        self._is_paused = False
        self._seen: tuple[bool, frozenset[str]] = (
            False,
            frozenset(),
        )  # what was decided by: paused, full topics
        self._is_dry = False  # nothing more had come when the record that went last was chosen

    def subscribe(
        self, topic: str, listener: RebalanceListener, extra_topics: tuple[str, ...] = ()
    ) -> None:
        """Joins the group for all topics. Raises `ConfigError` when one does not exist."""
        self._consumer.subscribe(topic, _Forgetting(listener, self._queues), extra_topics)

    def poll(self, timeout_s: float) -> Message | None:
        """Returns the record whose turn it is; None after `timeout_s` where there is none that may
        be taken in.
        """
        was_dry, self._is_dry = self._is_dry, False
        if was_dry and timeout_s == 0 and not self._queues.records:
            return None
        message = None
        if self._queues.records:
            self._is_dry = self._sift(0.0)
            message = self._next()
        if message is None and not (self._is_dry and timeout_s == 0):
            self._is_dry = self._sift(timeout_s)
            message = self._next() if self._queues.records else None
        self._is_dry = self._is_dry and message is not None
        return message

    def sort(self, timeout_s: float) -> None:
        """Sorts what comes within `timeout_s`, and hands nothing out: while nothing can be taken
        in, what is urgent is found.
        """
        self._sift(timeout_s)

    def _next(self) -> Message | None:
        if self._is_paused:
            return None
        now_us = self._clock.now_us()
        self._review(now_us)
        message = self._queues.next(
            self._held(),
            lambda topic: topic not in self._paces or self._paces[topic].may_take(now_us),
        )
        if message is not None and message.source.topic in self._paces:
            self._paces[message.source.topic].took(cost_bytes(message))
        elif message is not None:
            for pace in self._paces.values():
                pace.urgent(now_us)
        return message

    def _review(self, now_us: int) -> None:
        due = [pace for pace in self._paces.values() if pace.is_review_due(now_us)]
        if due:
            cpu_wait_us = self._cpu_wait_us()
            for pace in due:
                pace.review(now_us, cpu_wait_us)

    def _sift(self, timeout_s: float) -> bool:
        """Sorts what comes; returns whether it went on until nothing more was there."""
        for _ in range(SIFT_MAX):
            self._let_flow()
            message = self._consumer.poll(timeout_s)
            if message is None:
                return timeout_s == 0
            self._queues.add(message)
            timeout_s = 0.0
        return False

    def _let_flow(self) -> None:
        """Pauses and resumes topics where that has changed."""
        seen = self._is_paused, self._queues.full
        if seen == self._seen:
            return
        self._seen = seen
        stopped = frozenset(self._queues.topics) if self._is_paused else self._queues.full
        if came := stopped - self._stopped:
            self._consumer.pause(came)
        if gone := self._stopped - stopped:
            self._consumer.resume(gone)
        self._stopped = stopped

    def pause(self, topics: frozenset[str] | None = None) -> None:
        """Stops the flow of records from all topics."""
        self._is_paused = True
        self._let_flow()

    def resume(self, topics: frozenset[str] | None = None) -> None:
        """Lets records flow again."""
        self._is_paused = False
        self._let_flow()

    def pause_partitions(self, partitions: frozenset[TopicPartition]) -> None:
        """See `ConsumerClient.pause_partitions`. What is in the queues already is handed out."""
        self._consumer.pause_partitions(partitions)

    def waiting(self) -> dict[TopicPartition, int]:
        """Returns the records that wait in each assigned partition, here or at the brokers."""
        queued = self._queues.by_partition()
        return {at: records + queued[at] for at, records in self._consumer.waiting().items()}

    def commit(self, offsets: Mapping[TopicPartition, Position], on_result: CommitResult) -> None:
        """See `ConsumerClient.commit`."""
        self._consumer.commit(offsets, on_result)

    def commit_now(self, offsets: Mapping[TopicPartition, Position]) -> None:
        """See `ConsumerClient.commit_now`."""
        self._consumer.commit_now(offsets)

    def membership(self, *, fresh: bool = False) -> Membership | None:
        """See `ConsumerClient.membership`."""
        return self._consumer.membership(fresh=fresh)

    def close(self) -> None:
        """Leaves the group."""
        self._consumer.close()


class _Forgetting:
    """The service's listener, before which the queues hear of what is lost."""

    def __init__(self, listener: RebalanceListener, queues: IntakeQueues) -> None:
        self._listener = listener
        self._queues = queues

    def assigned(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Passes it on."""
        self._listener.assigned(positions)

    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        """Forgets what was polled of these partitions, and passes it on."""
        self._queues.forget(partitions)
        self._listener.revoked(partitions, lost=lost)

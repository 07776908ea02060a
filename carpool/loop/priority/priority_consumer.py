"""Polls a `ConsumerClient`, and returns records of several topics in turns.

It sorts the records of the client into one queue for each topic (`intake_queues`), so an
urgent record never waits for records of another topic that were fetched before it. It pauses a
topic whose queue is full. Records in the queues are not accepted yet. If their partition is revoked
they are dropped, and its next owner reads them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from carpool.clock import Clock
from carpool.kafka.clients import ConsumerClient
from carpool.kafka.records import Message, TopicPartition
from carpool.loop.priority.adaptive_rate_limit import AdaptiveRateLimit
from carpool.loop.priority.intake_queues import IntakeQueues, PriorityClass, cost_bytes

SCHEDSTAT = Path("/proc/thread-self/schedstat")
SORT_MAX = 250
"""Records that are sorted before one is returned: a few milliseconds."""
REST_AFTER_US = 60_000_000
LOOK_S, REST_OF_REPLY_S = 0.1, 0.01
"""After a rest: how long the reply to a fetch may take, and then all of its partitions.

A poll returns at the end of the first partition.
"""


class PriorityConsumer:
    """Polls and pauses `inner`. All other calls are made on that. For the polling thread."""

    def __init__(
        self,
        consumer: ConsumerClient,
        classes: tuple[PriorityClass, ...],
        *,
        unfinished_parts: Mapping[str, int],
        clock: Clock,
        cpu_wait_us: Callable[[], float | None] | None = None,
        rests: bool = False,
    ) -> None:
        """`unfinished_parts`: those that the service has in progress now, by topic.

        `cpu_wait_us`: mean wait of the polling thread for a CPU since the last call. `rests`: after
        a minute without a record, do not fetch all the time; for brokers where a fetch costs much.
        """
        self._clock = clock
        self._cpu_wait_us = cpu_wait_us or CpuWait().mean_us
        self._rate_limits = {
            each.topic: AdaptiveRateLimit(each.cpu_wait_us_max)
            for each in classes
            if each.cpu_wait_us_max
        }
        self.inner = consumer
        self._queues = IntakeQueues(classes)
        self._topics = frozenset(each.topic for each in classes)
        self._unfinished_parts = unfinished_parts
        self._asked = self._paused = (frozenset[str](), frozenset[TopicPartition]())
        self._is_drained = False  # the inner client had no more records at the last poll
        self._rests = rests
        self._rest_at_us = clock.now_us() + REST_AFTER_US

    def forget(self, partitions: frozenset[TopicPartition]) -> None:
        """Drops the queued records of revoked partitions. The listener calls it first."""
        self._queues.forget(partitions)

    def poll(self, timeout_s: float) -> Message | None:
        """Returns the next record; None after `timeout_s` if none may be accepted."""
        was_drained, self._is_drained = self._is_drained, False
        if was_drained and timeout_s == 0 and not self._queues.records:
            return None
        message = None
        if self._queues.records:
            self._is_drained = self.fill_queues(0.0)
            message = self._next()
        if message is None and not (self._is_drained and timeout_s == 0):
            self._is_drained = self.fill_queues(timeout_s)
            message = self._next() if self._queues.records else None
        self._is_drained = self._is_drained and message is not None
        return message

    def fill_queues(self, timeout_s: float) -> bool:
        """Sorts polled records into the queues; waits up to `timeout_s` for the first.

        Returns whether the inner client has no more records now.
        """
        for _ in range(SORT_MAX):
            self._update_paused()
            message = self._polled(timeout_s)
            if message is None:
                return timeout_s == 0
            self._queues.add(message)
            timeout_s = 0.0
        return False

    def _polled(self, timeout_s: float) -> Message | None:
        """As `poll` of the inner client; a member that rests needs longer than `timeout_s`."""
        now_us, message = self._clock.now_us(), None
        if self._rests and timeout_s > LOOK_S and now_us >= self._rest_at_us:
            self.inner.pause(self._topics)
            message = self.inner.poll(timeout_s)
            self.inner.pause(*self._paused)
            message = message or self.inner.poll(LOOK_S)
            timeout_s = REST_OF_REPLY_S
        message = message or self.inner.poll(timeout_s)
        if message is not None:
            self._rest_at_us = now_us + REST_AFTER_US
        return message

    def _next(self) -> Message | None:
        now_us = self._clock.now_us()
        self._review(now_us)
        message = self._queues.next(
            self._unfinished_parts,
            lambda topic: topic not in self._asked[0] and self._is_in_rate(topic, now_us),
        )
        if message is not None and message.source.topic in self._rate_limits:
            self._rate_limits[message.source.topic].took(cost_bytes(message))
        elif message is not None:
            for limit in self._rate_limits.values():
                limit.urgent(now_us)
        return message

    def _is_in_rate(self, topic: str, now_us: int) -> bool:
        limit = self._rate_limits.get(topic)
        return limit is None or limit.may_take(now_us)

    def _review(self, now_us: int) -> None:
        due = [limit for limit in self._rate_limits.values() if limit.is_review_due(now_us)]
        if due:
            cpu_wait_us = self._cpu_wait_us()
            for limit in due:
                limit.review(now_us, cpu_wait_us)

    def pause(
        self, topics: frozenset[str], partitions: frozenset[TopicPartition] = frozenset()
    ) -> None:
        """See `ConsumerClient.pause`. Records of `partitions` in the queues are still returned."""
        self._asked = topics, partitions
        self._update_paused()

    def _update_paused(self) -> None:
        """Pauses what the loop asks for, and full topics."""
        topics, partitions = self._asked
        paused = topics | self._queues.full, partitions
        if paused != self._paused:
            self._paused = paused
            self.inner.pause(*paused)

    def waiting(self) -> dict[TopicPartition, int]:
        """Returns the records of each assigned partition in the queues and at the brokers."""
        queued = self._queues.by_partition()
        return {at: records + queued[at] for at, records in self.inner.waiting().items()}


class CpuWait:
    """The wait for a CPU, by the scheduler of Linux, of the thread that calls: always the same."""

    def __init__(self, path: Path = SCHEDSTAT) -> None:
        """`path`: a file with run time and wait in nanoseconds, and the number of runs."""
        self._path = path
        self._last: tuple[int, int] | None = None

    def mean_us(self) -> float | None:
        """Returns the mean wait before a run since the last call; None: unknown.

        Takes microseconds.
        """
        try:
            _, wait_ns, runs = map(int, self._path.read_text().split())
        except (OSError, ValueError):
            return None
        last, self._last = self._last, (wait_ns, runs)
        if last is None:
            return None
        return (wait_ns - last[0]) / max(1, runs - last[1]) / 1_000

"""Decides when a batch of records that cannot be unpacked is passed over, and finds its end.

librdkafka reports such a batch again and again, with the offset of its first record, at whichever
of its offsets reading begins. A batch that does not read is often a passing error of the network or
of a broker, so one error passes over nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import KafkaError

from carpool.kafka.records import TopicPartition

UNREADABLE = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG})
"""Errors of bytes that came from the broker and are not readable. Other errors end by themselves,
or concern more than one batch.
"""
FAILURES_MIN = 4
FAILING_US_MIN = 2_500_000
"""A batch that failed so often, for so long, is passed over. librdkafka fetches it again each half
second.
"""


@dataclass(slots=True)
class _FailingBatch:
    offset: int
    since_us: int
    failures: int = 0


class UnreadableBatches:
    """Counts the failures of the batch at the front of each partition. Not thread-safe."""

    def __init__(self) -> None:
        self._failing: dict[TopicPartition, _FailingBatch] = {}

    def failed(self, at: TopicPartition, offset: int, now_us: int) -> bool:
        """Notes a failure of the batch that begins at `offset`; returns whether to pass it over."""
        failing = self._failing.get(at)
        if failing is None or failing.offset != offset:
            failing = self._failing[at] = _FailingBatch(offset, now_us)
        failing.failures += 1
        return failing.failures >= FAILURES_MIN and now_us - failing.since_us >= FAILING_US_MIN


def end_of_batch(first: int, log_end: int, is_inside: Callable[[int], bool]) -> int:
    """Returns the offset after a batch, which contains the offset `first`.

    `is_inside` reads at an offset, and says whether the same batch is found there. Offsets from
    `log_end` on are not read. Calls it at most twice for each doubling of the batch.
    """
    inside, step = first, 1
    while inside + step < log_end and is_inside(inside + step):
        inside, step = inside + step, 2 * step
    after = min(inside + step, log_end)
    while after - inside > 1:
        middle = (inside + after) // 2
        inside, after = (middle, after) if is_inside(middle) else (inside, middle)
    return after

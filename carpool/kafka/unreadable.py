"""Passes over batches of records that cannot be unpacked.

librdkafka reports such a batch again and again, with the offset of its first record, at whichever
of its offsets reading begins. A batch that does not read is often a passing error of the network or
of a broker, so one error passes over nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError

from carpool.errors import RetryableError
from carpool.kafka.client_config import reader_config
from carpool.kafka.raw_records import raw_partition
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings

UNREADABLE = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG})
"""Errors of bytes that came from the broker and are not readable. Other errors end by themselves,
or concern more than one batch.
"""
FAILURES_MIN = 4
FAILING_US_MIN = 2_500_000
"""A batch that failed so often, for so long, is passed over. librdkafka fetches it again each half
second.
"""
POLL_S = 0.05
READABLE = frozenset({KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET})


class UnreadableBatches:
    """Counts the failures of the batch at the front of each partition. Not thread-safe."""

    def __init__(self) -> None:
        self._failing: dict[TopicPartition, tuple[int, int, int]] = {}  # offset, since, failures

    def failed(self, at: TopicPartition, offset: int, now_us: int) -> bool:
        """Notes a failure of the batch that begins at `offset`; returns whether to pass it over."""
        known, since_us, failures = self._failing.get(at, (offset, now_us, 0))
        if known != offset:
            since_us, failures = now_us, 0
        self._failing[at] = offset, since_us, failures + 1
        return failures + 1 >= FAILURES_MIN and now_us - since_us >= FAILING_US_MIN


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


def pass_over(consumer: Consumer, settings: KafkaSettings, at: TopicPartition, first: int) -> int:
    """Seeks past the batch at `first`, which cannot be unpacked; returns the offset after it.

    Blocks for a moment. Raises `RetryableError` or `KafkaException`.
    """
    place = raw_partition(settings, at)
    timeout_s = settings.request_timeout_ms / 1_000
    reader = Consumer(reader_config(settings, "unreadable"))

    def begin(offset: int) -> int | None:
        """Returns where the batch begins that cannot be unpacked here; None: it can be."""
        until_s = time.monotonic() + timeout_s
        reader.assign([raw_partition(settings, at, offset)])
        while time.monotonic() < until_s:
            for raw in reader.consume(1, POLL_S):
                error = raw.error()
                if error is None or error.code() in READABLE:
                    return None
                if error.code() in UNREADABLE:
                    return int(raw.offset() or 0)
        raise RetryableError(f"{place.topic}[{at.partition}] at {offset} is not answered")

    try:
        found = begin(first)
        if found is None:
            raise RetryableError(f"{place.topic}[{at.partition}] at {first} can be read again")
        _, log_end = reader.get_watermark_offsets(place, timeout=timeout_s) or (0, 0)
        end = end_of_batch(first, log_end, lambda offset: begin(offset) == found)
    finally:
        reader.close()
    consumer.seek(raw_partition(settings, at, end))
    return end

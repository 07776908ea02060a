"""Reads the answers of assigned partitions to their end, and goes on reading, on a thread of its
own.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import structlog

from carpool.clock import Clock
from carpool.errors import CarpoolError, RetryableError
from carpool.kafka.records import Message
from generator.dedup.reader import AnswersReader

log = structlog.get_logger()

POLL_S = 0.05
BATCH = 500
"""Records that are told of at once: what a unit may have to wait for."""
BACKOFF_US_MIN = 250_000
BACKOFF_US_MAX = 4_000_000
REPORT_US = 5_000_000
"""How often progress is logged while the answers are read; what takes less is not."""
CLOSE_TIMEOUT_S = 1.0


class Heard(Protocol):
    """Told what the log of answers says, from the follower's thread."""

    def answers_seen(self, messages: Sequence[Message]) -> None:
        """The next records, those of each partition in order."""
        ...

    def answers_read(self, partition: int) -> None:
        """All that the log of this partition held when `read` was called has been seen."""
        ...

    def answer_fetched(self, unit_id: int, offset: int, message: Message | None) -> None:
        """The record that `fetch` asked for; None: it is no longer in the log."""
        ...

    def answers_failed(self, error: CarpoolError) -> None:
        """The answers cannot be read at all, for a reason that waiting does not mend."""
        ...


class _Span(NamedTuple):
    start: int
    end: int


class _Fetch(NamedTuple):
    unit_id: int
    partition: int
    offset: int


class Follower:
    """Owns an `AnswersReader`. `read`, `fetch`, `share` and `trouble` are thread-safe and return at
    once.

    A partition that went to another member is followed on: it costs little, and should the
    partition come back, only what is new is read. What fails is tried again, after a pause that
    doubles from 0.25 to 4 seconds; others are read meanwhile.
    """

    def __init__(
        self, reader: AnswersReader, heard: Heard, clock: Clock, *, horizon_ms: int
    ) -> None:
        self._reader = reader
        self._heard = heard
        self._clock = clock
        self._horizon_ms = horizon_ms
        self._asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._to_begin: dict[int, None] = {}
        self._fetches: deque[_Fetch] = deque()
        self._spans: dict[int, _Span] = {}
        self._followed: set[int] = set()
        self._is_open = False
        self.trouble: str | None = None
        """Why the answers cannot be read at the moment, in words."""
        self.share = 0.0
        """How much of what was to be read has been, from 0 to 1."""
        self._backoff_us = BACKOFF_US_MIN
        self._retry_at_us = 0
        self._began_us = self._report_at_us = 0
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="answer-ledger", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def read(self, partitions: Sequence[int]) -> None:
        """Reads these partitions to their end as it is when the thread comes to it, which is after
        this call.
        """
        for partition in partitions:
            self._asked.put(partition)
        self._wake.set()

    def fetch(self, unit_id: int, partition: int, offset: int) -> None:
        """Looks one record up."""
        self._fetches.append(_Fetch(unit_id, partition, offset))
        self._wake.set()

    def close(self) -> None:
        """Ends the thread. Blocks for up to a second."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_TIMEOUT_S)

    # What follows runs on the follower's thread.

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.step()
        except Exception as error:  # the thread must not die in silence: units would wait for ever
            log.exception("the answers cannot be followed")
            what = (
                error
                if isinstance(error, CarpoolError)
                else CarpoolError(f"the answer ledger failed: {error!r}")
            )
            self._heard.answers_failed(what)
        finally:
            self._reader.close()

    def step(self) -> None:
        """Does one round: begin what was asked for, take what there is, look up what is wanted.

        Only what asks a broker by itself has to pause after trouble: what is followed is fetched
        again by the client.
        """
        is_due = self._clock.now_us() >= self._retry_at_us
        try:
            if is_due:
                self._begin()
            self._follow(0 if is_due and self._fetches else POLL_S)
            if is_due:
                self._fetch()
        except RetryableError as error:
            self._pause(str(error))
        else:
            if is_due and self.trouble is not None:
                log.info("the answers are read again")
                self.trouble, self._backoff_us = None, BACKOFF_US_MIN

    def _pause(self, trouble: str) -> None:
        if trouble != self.trouble:
            log.warning("the answers cannot be read; that is tried again", trouble=trouble)
        self.trouble = trouble
        self._retry_at_us = self._clock.now_us() + self._backoff_us
        self._backoff_us = min(2 * self._backoff_us, BACKOFF_US_MAX)

    def _begin(self) -> None:
        while not self._asked.empty():
            self._to_begin[self._asked.get()] = None
        if self._to_begin and not self._is_open:
            self._reader.open()
            self._is_open = True
        trouble: RetryableError | None = None
        for partition in tuple(self._to_begin):
            try:
                self._begin_with(partition)
            except RetryableError as error:
                trouble = error
        if trouble is not None:
            raise trouble

    def _begin_with(self, partition: int) -> None:
        if not self._spans:
            self._began_us, self._report_at_us = (
                self._clock.now_us(),
                self._clock.now_us() + REPORT_US,
            )
        if partition in self._followed:
            start = self._reader.position(partition)
        else:
            start = self._reader.begin(partition, self._clock.now_us() // 1_000 - self._horizon_ms)
            self._followed.add(partition)
        self._spans[partition] = _Span(start, self._reader.end(partition))
        del self._to_begin[partition]

    def _follow(self, wait_s: float) -> None:
        if not self._followed:
            self._wake.wait(POLL_S)
            self._wake.clear()
            return
        messages = self._reader.poll(wait_s, BATCH)
        if messages:
            self._heard.answers_seen(messages)
        self._report()
        for partition, span in tuple(self._spans.items()):
            # A broker may put the end before the last of the records that it sends with it (the
            # embedded one does).
            if self._reader.position(partition) >= span.end and len(messages) < BATCH:
                del self._spans[partition]
                self._heard.answers_read(partition)

    def _report(self) -> None:
        spans = self._spans.items()
        total = sum(span.end - span.start for _, span in spans)
        read = sum(self._reader.position(partition) - span.start for partition, span in spans)
        self.share = min(1.0, read / total) if total else 0.0
        now_us = self._clock.now_us()
        if spans and now_us >= self._report_at_us:
            self._report_at_us = now_us + REPORT_US
            log.info(
                "reading the answers",
                partitions=sorted(self._spans),
                read_offsets=read,
                offsets=total,
                seconds=round((now_us - self._began_us) / 1_000_000),
            )

    def _fetch(self) -> None:
        while self._fetches:
            wanted = self._fetches[0]
            message = self._reader.fetch(wanted.partition, wanted.offset)
            self._fetches.popleft()
            self._heard.answer_fetched(wanted.unit_id, wanted.offset, message)

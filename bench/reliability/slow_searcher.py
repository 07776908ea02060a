"""The searcher on a slow disk: `python -m bench.reliability.slow_searcher BYTES_PER_S`.

Settings come from the environment, as for `carpool searcher`. The disk of clusters delivers one
read after another; reads of passages are not slowed down.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import msgspec

from carpool.clock import SystemClock
from carpool.disk.settings import IndexSettings
from carpool.kafka.librdkafka.table_log import LibrdkafkaTableLog
from carpool.kafka.settings import KafkaSettings
from carpool.loop.priority.intake_queues import Intake
from carpool.run_service import of_all_topics, run_service
from carpool.settings import load_settings
from carpool.telemetry.settings import HttpSettings, LogSettings
from schemas.codec import decode
from schemas.group import Group
from schemas.topics import GROUPS, SCANS, read_with
from searcher.build import READ_THREADS
from searcher.service import build_stage
from searcher.settings import SearcherSettings
from searcher.store.files import SegmentFiles
from searcher.store.page_reads import PageBatch, PageReads, ThreadPageReads
from searcher.store.waker import Waker


class _SlowReads:
    """Implements `PageReads`: a disk that delivers one batch after another."""

    def __init__(self, inner: PageReads, waker: Waker, bytes_per_s: float) -> None:
        self._inner, self._waker, self._bytes_per_s = inner, waker, bytes_per_s
        self._free_s = 0.0  # when it has delivered all, by the monotonic clock
        self._late: list[tuple[float, PageBatch]] = []
        self.submit, self.close = inner.submit, inner.close

    def poll(self) -> list[PageBatch]:
        """Returns the batches that have ended and are due."""
        now_s = time.monotonic()
        for batch in self._inner.poll():
            took_s = int(batch.sizes_bytes.sum()) / self._bytes_per_s
            self._free_s = max(now_s, self._free_s) + took_s
            self._late.append((self._free_s, batch))
            timer = threading.Timer(self._free_s - now_s, self._waker.wake)
            timer.daemon = True
            timer.start()
        due = [batch for at_s, batch in self._late if at_s <= now_s]
        self._late = [(at_s, batch) for at_s, batch in self._late if at_s > now_s]
        return due


class _SearcherSections(msgspec.Struct, frozen=True, kw_only=True):
    kafka: KafkaSettings
    http: HttpSettings
    log: LogSettings
    index: IndexSettings
    searcher: SearcherSettings


def command(bytes_per_s: float) -> tuple[str, ...]:
    """Returns the command of the process."""
    return (sys.executable, "-m", __name__, str(bytes_per_s))


def main(bytes_per_s: float) -> None:
    """Runs the searcher until a stop signal."""
    prefixes = tuple(f"CARPOOL_{name.upper()}_" for name in _SearcherSections.__struct_fields__)
    environ = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    settings = load_settings(_SearcherSections, file=None, environ=environ, flags={})

    def slow(files: SegmentFiles, waker: Waker) -> PageReads:
        reads = ThreadPageReads(files, waker, SystemClock(), READ_THREADS)
        return _SlowReads(reads, waker, bytes_per_s)

    intake = Intake(
        topic=GROUPS.name,
        decode=lambda message: decode(Group, message.value, message.headers),
        bad_input="stop",
        parts=lambda group: len(group.queries),
    )
    run_service(
        name="searcher",
        intake=of_all_topics(
            intake, read_with(GROUPS), settings.kafka, settings.searcher.queries_in_hand_max
        ),
        build_stage=lambda metrics, clock: build_stage(
            settings.searcher,
            settings.index,
            metrics,
            clock,
            scans=LibrdkafkaTableLog(settings.kafka, clock, SCANS, like=GROUPS)
            if settings.kafka.lanes > 1
            else None,
            open_reads=slow,
        ),
        kafka=settings.kafka,
        http=settings.http,
        logs=settings.log,
    )


if __name__ == "__main__":
    main(float(sys.argv[1]))

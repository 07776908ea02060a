"""Clusters on disk, and a cluster memory over them that hears of everything."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from unittest import mock

import numpy as np

from carpool.clock import SystemClock
from carpool.disk.index import open_index
from carpool.disk.pages import dense
from carpool.errors import ReadError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.memory import cluster_memory
from searcher.memory.cluster_memory import ClusterMemory, SliceRead
from searcher.plan.cluster_steps import ReadEvent, ReadFailed
from searcher.settings import SearcherSettings
from searcher.store.arena import Arena
from searcher.store.reader import Reader
from searcher.store.waker import Waker
from tests.disk.helpers import make_content, write_index
from tests.rig.faulty_disk import Fault, FaultyDisk, PageRead
from tests.searcher.faults import Disks
from tests.waiting import WAIT_S, wait_until

Error = TypeVar("Error", bound=ReadError)

ROW_COUNTS = (700, 0, 1, 330, 42, 512, 900, 77)
A, B, C, D = (ClusterId(c) for c in (0, 3, 5, 6))
ALL = tuple(ClusterId(c) for c in range(len(ROW_COUNTS)))


class Stored:
    """An index on disk, and the rows of its clusters."""

    def __init__(
        self,
        folder: Path,
        row_counts: tuple[int, ...] = ROW_COUNTS,
        dimension: int = 24,
        segment_bytes_max: int = 200_000,
    ) -> None:
        content = make_content(row_counts=row_counts, dimension=dimension)
        write_index(folder, content, segment_bytes_max=segment_bytes_max, has_codes=False)
        opened = open_index(folder)
        opened.close()
        self.layout, self.extents = opened.layout, opened.extents
        self.paths, self.sums = opened.segment_paths, opened.row_sums
        self.vectors = [content.vectors[rows] for rows in content.clusters]

    def copied(self, folder: Path) -> list[Path]:
        """Copies of the segments, to be damaged."""
        return [Path(shutil.copy(path, folder)) for path in self.paths]


@dataclass(frozen=True, kw_only=True)
class Running:
    memory: ClusterMemory
    disk: FaultyDisk
    waker: Waker
    metrics: Metrics
    arena: Arena

    def take(self, count: int) -> list[ReadEvent]:
        """The next `count` events, and no more have come."""
        events: list[ReadEvent] = []

        def came() -> bool:
            events.extend(self.memory.advance())
            return len(events) >= count

        wait_until(came, lambda: events)
        assert len(events) == count, events
        return events

    def read(self, *clusters: ClusterId, is_prefetch: bool = False) -> dict[ClusterId, ReadEvent]:
        for cluster in clusters:
            self.memory.begin_read(cluster, is_prefetch=is_prefetch)
        return {event.slice_id: event for event in self.take(len(clusters))}

    def seen_bytes(self) -> int:
        return sum(read.size_bytes for read in self.disk.seen)

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"carpool_{name}", labels or None) or 0.0


@contextmanager
def running(
    stored: Stored,
    *,
    paths: Sequence[Path] = (),
    arena_bytes: int = 2 << 20,
    block_pages: int = 2,
    read_pages: int = 5,
    timeout_us: int = 60_000_000,
    in_flight_bytes: int = 1 << 20,
    fault: Callable[[PageRead], Fault] = lambda _: None,
) -> Iterator[Running]:
    """Small blocks and reads, so that clusters come in many pieces. `paths`: damaged copies."""
    arena = Arena(arena_bytes, block_pages * stored.layout.page_bytes)
    metrics, clock, waker = Metrics(), SystemClock(), Waker()
    disks = Disks()
    reader: Reader[SliceRead] = Reader(
        paths or stored.paths,
        arena,
        SearcherSettings(read_timeout_ms=timeout_us // 1_000, direct_io="auto"),
        waker,
        clock,
        sums=stored.sums,
        verifies_aside=True,
        open_reads=disks,
    )
    disk = disks[0]
    disk.fault = fault
    memory = ClusterMemory(
        layout=stored.layout, extents=stored.extents, reader=reader, metrics=metrics, clock=clock
    )
    limits = {
        "IN_FLIGHT_BYTES_MAX": in_flight_bytes,
        "AHEAD_MAX": 1,
        "READ_BYTES_MAX": read_pages * stored.layout.page_bytes,
    }
    try:
        with mock.patch.multiple(cluster_memory, **limits):
            yield Running(memory=memory, disk=disk, waker=waker, metrics=metrics, arena=arena)
        memory.check_integrity()
    finally:
        disk.release()
        assert memory.close(WAIT_S)
        waker.close()


def error_of(event: ReadEvent, kind: type[Error], *, is_stuck: bool = False) -> Error:
    """Returns the error of a read that broke; it names its cluster."""
    assert isinstance(event, ReadFailed), event
    assert isinstance(event.error, kind) and event.is_stuck == is_stuck
    assert f"cluster {event.slice_id} " in str(event.error)
    return event.error


def check_rows(memory: ClusterMemory, stored: Stored, cluster: ClusterId) -> None:
    pages = memory.pages(cluster)
    rows = dense(pages)
    assert np.array_equal(rows.vectors, stored.vectors[cluster])
    first = stored.extents[cluster].first_page * stored.layout.rows_per_page
    assert rows.rows.tolist() == [first + n for n in range(len(stored.vectors[cluster]))]
    assert not any(piece.flags.writeable for piece in pages.pieces)

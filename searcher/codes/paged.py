"""Codes that do not fit memory: those that are needed next are read, and others leave.

Carries out the steps of `PagedCodesPlanner` in their order. Reads run ahead: a cluster that was
read waits until the scans before its turn have ended and its place is free.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence

import numpy as np
import structlog

from carpool.codes.int4 import CodeScanner
from carpool.disk.index import OpenCodes
from carpool.errors import ReadError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.codes.codes_reader import CodesRead, CodesReader
from searcher.codes.source import ScanPart
from searcher.plan.paged_codes import (
    EvictCodes,
    PagedCodesPlanner,
    ReadCodes,
    ScanCodes,
    Step,
)

_log = structlog.get_logger(__name__)


class PagedCodes:
    """Implements `CodeSource`. `reader` is closed by its owner."""

    def __init__(
        self,
        codes: OpenCodes,
        scanner: CodeScanner,
        planner: PagedCodesPlanner,
        reader: CodesReader,
        metrics: Metrics,
        *,
        read_ahead_bytes: int,
    ) -> None:
        """`read_ahead_bytes`: that wait for memory; below it, more steps are planned."""
        self.scanner = scanner
        self.first_rows, self.row_counts = codes.first_rows, codes.row_counts
        self._extents = codes.extents
        self._planner = planner
        self._reader = reader
        self._read_bytes = metrics.searcher.bytes_read.labels(purpose="codes")
        self._evictions = metrics.searcher.evictions
        self._read_ahead_bytes = read_ahead_bytes
        self._steps: deque[tuple[Step, CodesRead | None]] = deque()  # not done
        self._there = {  # those without rows have nothing to read
            ClusterId(cluster) for cluster in np.flatnonzero(codes.row_counts == 0).tolist()
        }
        self._scans: Counter[ClusterId] = Counter()  # parts that are not ended, by cluster
        self._broken: dict[ClusterId, ReadError] = {}  # the last error of a read

    @property
    def times_out_at_us(self) -> int | None:
        """See `CodeSource`."""
        return self._reader.reader.times_out_at_us

    def not_in_memory(self, clusters: Sequence[ClusterId]) -> Sequence[ClusterId]:
        """See `CodeSource`."""
        return self._planner.not_in_memory(clusters)

    def expect(self, next_window: Mapping[ClusterId, int]) -> None:
        """See `CodeSource`."""
        self._planner.expect(next_window)

    def want(self, key: int, clusters: Sequence[ClusterId]) -> None:
        """See `CodeSource`."""
        self._planner.join(key, clusters)

    def drop(self, key: int) -> None:
        """See `CodeSource`."""
        self._planner.drop(key)

    def advance(self) -> list[ScanPart]:
        """Plans, reads, and does the steps whose turn it is; see `CodeSource`."""
        parts: list[ScanPart] = []
        while True:
            self._plan()
            self._reader.advance()
            if not self._do_steps(parts):
                return parts

    def end(self, clusters: Sequence[ClusterId]) -> None:
        """See `CodeSource`."""
        for cluster in clusters:
            self._scans[cluster] -= 1
            if not self._scans[cluster]:
                del self._scans[cluster]

    def check_integrity(self) -> None:
        """See `CodeSource`."""
        self._planner.check_integrity()
        self._reader.reader.check_integrity()
        if not self._steps:
            every = list(map(ClusterId, range(len(self._extents))))
            assert self._there.isdisjoint(absent := self._planner.not_in_memory(every))
            assert len(self._there) + len(absent) == len(every)

    def _plan(self) -> None:
        while len(self._planner) and self._reader.unstarted_bytes < self._read_ahead_bytes:
            for step in self._planner.plan():
                read = self._reader.want(step.cluster) if isinstance(step, ReadCodes) else None
                self._steps.append((step, read))

    def _do_steps(self, parts: list[ScanPart]) -> bool:
        """Does the next steps, as far as possible; returns whether one was done."""
        has_done = False
        while self._steps:
            step, read = self._steps.popleft()
            if not self._do(step, read, parts):
                self._steps.appendleft((step, read))
                break
            has_done = True
        return has_done

    def _do(self, step: Step, read: CodesRead | None, parts: list[ScanPart]) -> bool:
        """Does a step; returns False where it must wait."""
        match step:
            case ReadCodes():
                assert read is not None
                return self._load(step, read, parts)
            case EvictCodes():
                if self._scans[step.cluster]:
                    return False
                if step.cluster in self._there:
                    self._there.remove(step.cluster)
                    self.scanner.drop(step.cluster)
                    self._evictions.inc()
            case ScanCodes():
                if step.cluster in self._there:
                    self._scan(step, parts)
                else:
                    errors = {step.cluster: self._broken[step.cluster]}
                    parts.append(ScanPart(keys=step.keys, errors=errors))
        return True

    def _load(self, step: ReadCodes, read: CodesRead, parts: list[ScanPart]) -> bool:
        cluster, found = step.cluster, self._reader.take(read)
        if found is None:
            return False
        if isinstance(found, ReadError):
            keys = (*step.keys, *self._fail(cluster, found))
            parts.append(ScanPart(keys=keys, errors={cluster: found}))
            return True
        self.scanner.load(cluster, found)
        self._there.add(cluster)
        self._broken.pop(cluster, None)
        size_bytes = self._extents[cluster].read_bytes
        self._read_bytes.inc(size_bytes)
        self._scan(step, parts, size_bytes)
        return True

    def _scan(
        self, step: ReadCodes | ScanCodes, parts: list[ScanPart], bytes_read: int = 0
    ) -> None:
        self._scans[step.cluster] += 1
        parts.append(ScanPart(keys=step.keys, clusters=(step.cluster,), bytes_read=bytes_read))

    def _fail(self, cluster: ClusterId, error: ReadError) -> tuple[int, ...]:
        """The codes of a cluster cannot be read: later steps do without them.

        Returns the queries that wait for it and are in no step.
        """
        _log.error("codes of a cluster cannot be read", cluster=cluster, error=str(error))
        self._broken[cluster] = error
        for at, (step, read) in enumerate(self._steps):
            if isinstance(step, ReadCodes) and step.cluster == cluster:
                assert read is not None
                self._reader.forget(read)
                self._steps[at] = (ScanCodes(cluster, step.keys), None)
        return self._planner.fail(cluster)

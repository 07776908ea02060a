"""Codes that do not fit memory: those that are needed next are read, and others leave.

Carries out the steps of `PagedCodesPlanner` in their order. Reads run ahead: a cluster that was
read waits until the scans before its turn have ended and its place is free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import structlog

from carpool.codes.int4 import CodeScanner
from carpool.disk.index import OpenCodes
from carpool.errors import ReadError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.codes.codes_reader import CodesRead, CodesReader
from searcher.codes.source import NONE, ScanPart
from searcher.plan.paged_codes import EvictCodes, PagedCodesPlanner, ReadCodes, ScanCodes, Step

Int64 = npt.NDArray[np.int64]

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
        self._is_there = codes.row_counts == 0  # those without rows have nothing to read
        self._scans = np.zeros(len(codes.row_counts), np.int64)  # not ended, of each cluster
        self._broken: dict[ClusterId, ReadError] = {}  # the last error of a read

    @property
    def times_out_at_us(self) -> int | None:
        """See `CodeSource`."""
        return self._reader.reader.times_out_at_us

    def expect(self, next_window: Mapping[ClusterId, int]) -> None:
        """See `CodeSource`."""
        self._planner.expect(next_window)

    def want(self, key: int, clusters: Sequence[ClusterId]) -> Sequence[ClusterId]:
        """See `CodeSource`."""
        wanted = np.array(clusters, np.int64)
        self._planner.join(key, wanted)
        return list(map(ClusterId, self._planner.not_in_memory(wanted).tolist()))

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

    def end(self, clusters: Int64) -> None:
        """See `CodeSource`."""
        np.subtract.at(self._scans, clusters, 1)

    def check_integrity(self) -> None:
        """See `CodeSource`."""
        self._planner.check_integrity()
        self._reader.reader.check_integrity()
        if not self._steps:
            absent = self._planner.not_in_memory(np.arange(len(self._extents)))
            assert np.flatnonzero(~self._is_there).tolist() == absent.tolist()

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
                if self._is_there[step.cluster]:
                    self._is_there[step.cluster] = False
                    self.scanner.drop(step.cluster)
                    self._evictions.inc()
            case ScanCodes():
                self._scan(step.keys, step.clusters, parts)
        return True

    def _load(self, step: ReadCodes, read: CodesRead, parts: list[ScanPart]) -> bool:
        cluster, found = step.cluster, self._reader.take(read)
        if found is None:
            return False
        if isinstance(found, ReadError):
            keys = (*step.keys.tolist(), *self._fail(cluster, found))
            errors = [(key, cluster, found) for key in keys]
            parts.append(ScanPart(keys=NONE, clusters=NONE, errors=errors))
            return True
        self.scanner.load(cluster, found)
        self._is_there[cluster] = True
        self._broken.pop(cluster, None)
        size_bytes = self._extents[cluster].read_bytes
        self._read_bytes.inc(size_bytes)
        self._scans[cluster] += len(step.keys)
        clusters = np.full(len(step.keys), cluster)
        parts.append(ScanPart(keys=step.keys, clusters=clusters, bytes_read=size_bytes))
        return True

    def _scan(self, keys: Int64, clusters: Int64, parts: list[ScanPart]) -> None:
        errors = list[tuple[int, ClusterId, ReadError]]()
        if not (are_there := self._is_there[clusters]).all():
            for pair in np.flatnonzero(~are_there).tolist():
                cluster = ClusterId(int(clusters[pair]))
                errors.append((int(keys[pair]), cluster, self._broken[cluster]))
            keys, clusters = keys[are_there], clusters[are_there]
        np.add.at(self._scans, clusters, 1)
        parts.append(ScanPart(keys=keys, clusters=clusters, errors=errors))

    def _fail(self, cluster: ClusterId, error: ReadError) -> list[int]:
        """The codes of a cluster cannot be read: later steps do without them.

        Returns the queries that wait for it and are in no step.
        """
        _log.error("codes of a cluster cannot be read", cluster=cluster, error=str(error))
        self._broken[cluster] = error
        for at, (step, read) in enumerate(self._steps):
            if isinstance(step, ReadCodes) and step.cluster == cluster:
                assert read is not None
                self._reader.forget(read)
                self._steps[at] = (ScanCodes(step.keys, np.full(len(step.keys), cluster)), None)
        keys: list[int] = self._planner.fail(cluster).tolist()
        return keys

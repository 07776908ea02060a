"""The rows of an index as a source: their codes are scanned, in batches of queries.

A scan reads the codes of each cluster once for all queries that probe it. Where not all codes are
in memory at a time, a query is scanned in parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from carpool.arrays import Int64
from carpool.clock import Clock
from carpool.codes.by_numpy import Proposed
from carpool.codes.codec import CODEC
from carpool.errors import ReadError
from schemas.record import ClusterId
from schemas.retrieval import Tier
from searcher.codes.source import NONE, CodeSource, ScanPart
from searcher.executor import SearchGroup
from searcher.row_source import BATCH_MAX, Scan, Scanned, by_identity


@dataclass(slots=True, eq=False)
class _InScan:
    """A scan that goes on. `left`: how many clusters are not scanned."""

    scan: Scan
    left: int
    proposed: Proposed | None = None
    took_us: int = 0
    bytes_read: int = 0
    errors: dict[ClusterId, ReadError] = field(default_factory=dict)


class CodedRows:
    """Implements `RowSource`; it has every cluster. `codes` belong to the caller."""

    codec = CODEC

    def __init__(self, codes: CodeSource, clock: Clock) -> None:
        self._codes = codes
        self._clock = clock
        self._scans: dict[int, _InScan] = {}
        self._waiting: deque[ScanPart] = deque()  # not scanned yet

    @property
    def times_out_at_us(self) -> int | None:
        """See `RowSource`."""
        return self._codes.times_out_at_us

    @property
    def is_ready(self) -> bool:
        """See `RowSource`."""
        return bool(self._waiting)

    def join(self, group: SearchGroup, *, begins_window: bool) -> None:
        """See `RowSource`."""
        if begins_window:
            self._codes.expect(group.horizon)

    def take(self, clusters: Sequence[ClusterId]) -> Sequence[ClusterId]:
        """Returns all `clusters`; see `RowSource`."""
        return clusters

    def scan(self, scan: Scan) -> Mapping[ClusterId, Tier]:
        """See `RowSource`."""
        self._scans[scan.key] = _InScan(scan, len(scan.clusters))
        return dict.fromkeys(self._codes.want(scan.key, scan.clusters), "ssd")

    def drop(self, key: int) -> None:
        """See `RowSource`."""
        if self._scans.pop(key, None) is not None:
            self._codes.drop(key)

    def advance(self, *, may_scan: bool) -> Sequence[Scanned]:
        """Scans the next batch; see `RowSource`."""
        self._waiting += self._codes.advance()
        if not (may_scan and self._waiting):
            return ()
        found = self._scan(self._next_batch())
        self._waiting += self._codes.advance()  # places are free again
        return found

    def check_integrity(self) -> None:
        """See `RowSource`."""
        self._codes.check_integrity()

    def close(self) -> None:
        """Does nothing; see `RowSource`."""

    def _scan(self, batch: Mapping[int, Int64]) -> list[Scanned]:
        """Scans the clusters of each key, and returns the scans that have ended."""
        if not batch:  # all were dropped
            return []
        began_us = self._clock.now_us()
        scans = [self._scans[key] for key in batch]
        if new := [each for each in scans if each.proposed is None]:
            vectors = np.stack([each.scan.vector for each in new])
            begun = self._codes.scanner.begin(vectors, max(each.scan.count for each in new))
            for each, proposed in zip(new, begun, strict=True):
                each.proposed = proposed
        for some in by_identity([each.scan.mask for each in scans]):
            every = [known for at in some if (known := scans[at].proposed) is not None]
            probes = [batch[scans[at].scan.key] for at in some]
            self._codes.scanner.add(every, probes, scans[some[0]].scan.mask)
        share_us = (self._clock.now_us() - began_us) // len(scans)
        for each, clusters in zip(scans, batch.values(), strict=True):
            each.took_us += share_us
            each.left -= len(clusters)
        return [self._ended(each) for each in scans if not each.left]

    def _next_batch(self) -> dict[int, Int64]:
        """Takes the next clusters to scan, by key: of `BATCH_MAX` queries, or of one part."""
        batch, parts = dict[int, Int64](), list[ScanPart]()
        while self._waiting:
            part = self._waiting[0]
            own = dict.fromkeys([*part.keys.tolist(), *(key for key, _, _ in part.errors)], NONE)
            if len(batch) >= BATCH_MAX and not batch.keys() >= own.keys():
                break
            parts.append(self._waiting.popleft())
            self._codes.end(part.clusters)
            own = {key: none for key, none in own.items() if key in self._scans}
            batch |= own  # the others were dropped
            for key in list(own)[:1]:
                self._scans[key].bytes_read += part.bytes_read
            for key, cluster, error in part.errors:
                if key in own:
                    self._scans[key].errors[cluster] = error
                    self._scans[key].left -= 1
        for key, clusters in _by_key(parts):
            if key in batch:
                batch[key] = clusters
        return batch

    def _ended(self, ended: _InScan) -> Scanned:
        assert ended.proposed is not None
        del self._scans[ended.scan.key]
        return Scanned(
            key=ended.scan.key,
            rows=ended.proposed.rows,
            estimates=ended.proposed.estimates,
            took_us=ended.took_us,
            bytes_read=ended.bytes_read,
            errors=ended.errors,
        )


def _by_key(parts: Sequence[ScanPart]) -> Iterator[tuple[int, Int64]]:
    """Yields the clusters of each key, in the order of the parts."""
    keys = np.concatenate([NONE, *(part.keys for part in parts)])
    clusters = np.concatenate([NONE, *(part.clusters for part in parts)])
    order = np.argsort(keys, kind="stable")
    queries, starts = np.unique(keys[order], return_index=True)
    ends = [*starts[1:].tolist(), len(keys)]
    for query, start, end in zip(queries.tolist(), starts.tolist(), ends, strict=False):
        yield query, clusters[order[start:end]]

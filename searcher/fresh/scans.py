"""Fresh rows as a source: their codes are scanned for all queries that wait and see the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from carpool.clock import Clock
from carpool.codes.codec import CODEC
from schemas.record import ClusterId
from schemas.retrieval import Tier
from searcher.executor import SearchGroup
from searcher.fresh.rows import FreshView
from searcher.row_source import BATCH_MAX, Scan, Scanned, by_identity


class FreshScans:
    """Implements `RowSource`. It has no cluster for itself: `scan` is called for every query."""

    codec = CODEC
    times_out_at_us = None

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[int, Scan] = {}

    @property
    def is_ready(self) -> bool:
        """See `RowSource`."""
        return bool(self._waiting)

    def join(self, group: SearchGroup, *, begins_window: bool) -> None:
        """Does nothing; see `RowSource`."""

    def take(self, clusters: Sequence[ClusterId]) -> Sequence[ClusterId]:
        """Returns nothing: other sources scan the clusters of the index; see `RowSource`."""
        return ()

    def scan(self, scan: Scan) -> Mapping[ClusterId, Tier]:
        """See `RowSource`; the scan has fresh rows."""
        self._waiting[scan.key] = scan
        return {}

    def drop(self, key: int) -> None:
        """See `RowSource`."""
        self._waiting.pop(key, None)

    def advance(self, *, may_scan: bool) -> Sequence[Scanned]:
        """Scans the next batch; see `RowSource`."""
        if not may_scan:
            return ()
        scans = [self._waiting.pop(key) for key in list(self._waiting)[:BATCH_MAX]]
        found = list[Scanned]()
        for some in by_identity([each.fresh for each in scans]):
            found += self._scan([scans[at] for at in some])
        return found

    def check_integrity(self) -> None:
        """Does nothing; see `RowSource`."""

    def close(self) -> None:
        """Does nothing; see `RowSource`."""

    def _scan(self, scans: Sequence[Scan]) -> list[Scanned]:
        """Scans for queries that see the same rows."""
        began_us, fresh = self._clock.now_us(), scans[0].fresh
        assert isinstance(fresh, FreshView), "only a search with fresh rows has such a scan"
        vectors = np.stack([each.vector for each in scans])
        proposed = fresh.rows.codes.begin(vectors, max(each.count for each in scans))
        fresh.scan(proposed, [np.array(each.clusters, np.int64) for each in scans])
        share_us = (self._clock.now_us() - began_us) // len(scans)
        first_row = fresh.rows.first_row
        return [
            Scanned(
                key=scan.key,
                rows=np.where(one.rows < 0, -1, one.rows + first_row),
                estimates=one.estimates,
                took_us=share_us,
            )
            for scan, one in zip(scans, proposed, strict=True)
        ]

"""Scans of other searchers, for the queries of this one that wait for them, in any order.

A scan may come before its group is read, and a group may be read again after a rebalance. So scans
are kept; the oldest leave where there are too many.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence

import structlog

from carpool.clock import Clock
from carpool.errors import CarpoolError
from carpool.kafka.records import Message
from carpool.kafka.topic_log import TopicLog
from carpool.kafka.topic_table import TableListener, TopicTable
from schemas.codec import decode
from schemas.scan import Scan
from schemas.topics import SCANS
from searcher.scatter.scan_records import QueryName, name_in_scan

_log = structlog.get_logger(__name__)

READ_MAX = 20_000
"""Scans of a partition that are read when it is assigned, at least: the newest."""
KEPT_BYTES_MAX = 16 << 20
"""Bytes of scans that are kept. One has 1 to 25 KB."""
SCAN_BYTES = 1_000
"""What a scan takes besides its rows and estimates."""

Deliver = Callable[[int, Scan], None]


class ScanInbox(TableListener):
    """Reads the scans of the lanes of this searcher. Thread-safe; nothing but `close` blocks."""

    def __init__(
        self, log: TopicLog, deliver: Deliver, fail: Callable[[CarpoolError], None], clock: Clock
    ) -> None:
        """`deliver` gets the key of a search and a scan for it, on any thread."""
        self._deliver = deliver
        self._fail = fail
        self._lock = threading.Lock()
        self._waiting: dict[QueryName, int] = {}  # keys of searches
        self._scans: OrderedDict[tuple[QueryName, int], Scan] = OrderedDict()  # and lane
        self._kept_bytes = 0
        self._lanes: frozenset[int] = frozenset()
        self._table = TopicTable(log, self, clock, horizon_ms=SCANS.retention_ms, rows_max=READ_MAX)

    @property
    def trouble(self) -> str | None:
        """Why scans cannot be read at the moment."""
        return self._table.trouble

    def start(self) -> None:
        """Starts the thread that reads."""
        self._table.start()

    def read(self, lanes: Iterable[int]) -> None:
        """Reads the scans for these lanes, and for no others."""
        lanes, before = frozenset(lanes), self._lanes
        self._lanes = lanes
        self._table.forget(sorted(before - lanes))
        self._table.read(sorted(lanes - before))

    def expect(self, query: QueryName, key: int, lanes: Iterable[int]) -> None:
        """Delivers the scans of `lanes` for `query`: those that have come, and those that come."""
        with self._lock:
            self._waiting[query] = key
            come = [scan for lane in lanes if (scan := self._scans.get((query, lane))) is not None]
        for scan in come:
            self._deliver(key, scan)

    def forget(self, query: QueryName, key: int) -> None:
        """The search `key` does not wait any more; another lane may have one for the same query."""
        with self._lock:
            if self._waiting.get(query) == key:
                del self._waiting[query]

    def check_integrity(self, keys: Collection[int]) -> None:
        """Raises `AssertionError` where a search waits that is not among `keys`."""
        with self._lock:
            assert set(self._waiting.values()) <= set(keys), "a query that has ended still waits"
            assert self._kept_bytes == sum(map(_size_bytes, self._scans.values()))

    def close(self) -> None:
        """Ends the thread. Blocks for up to a second."""
        self._table.close()

    # ---- the thread of the table

    def rows_read(self, messages: Sequence[Message]) -> None:
        """Delivers scans to queries that wait, and keeps the others; see `TableListener`."""
        for message in messages:
            try:
                self._take(decode(Scan, message.value, message.headers))
            except Exception as error:  # a fault of ours, too, costs its query this scan only
                _log.warning(
                    "a scan cannot be read; its query is scanned here after 30 s",
                    place=message.source.place,
                    error=repr(error),
                )

    def _take(self, scan: Scan) -> None:
        query = name_in_scan(scan)
        with self._lock:
            key = self._waiting.get(query)
            before = self._scans.pop((query, scan.lane), None)
            self._scans[query, scan.lane] = scan
            self._kept_bytes += _size_bytes(scan) - (_size_bytes(before) if before else 0)
            while self._kept_bytes > KEPT_BYTES_MAX:
                self._kept_bytes -= _size_bytes(self._scans.popitem(last=False)[1])
        if key is not None:
            self._deliver(key, scan)

    def table_failed(self, error: CarpoolError) -> None:
        """Stops the service; see `TableListener`."""
        self._fail(error)


def _size_bytes(scan: Scan) -> int:
    return SCAN_BYTES + len(scan.rows) + len(scan.estimates)

"""Scans as records: what a searcher found for a query of another lane."""

from __future__ import annotations

import numpy as np

from carpool.kafka.records import Output
from schemas.codec import encode
from schemas.group import Group, GroupedQuery
from schemas.scan import Scan
from schemas.topics import SCANS
from searcher.executor import ScanResult

SOURCE = "carpool/searcher"

QueryName = tuple[str, str, int]
"""A query in a group: where it was published, the grouper, and its window."""


def name_in_group(group: Group, grouped: GroupedQuery) -> QueryName:
    """Returns the name by which a scan refers to a query."""
    return grouped.source.place, group.grouper, group.window_id


def name_in_scan(scan: Scan) -> QueryName:
    """Returns the name of the query that a scan is for."""
    return scan.source.place, scan.grouper, scan.window_id


def scan_output(
    group: Group, grouped: GroupedQuery, found: ScanResult | None, now_us: int
) -> Output:
    """Returns the record for the home lane of a query; `found` is None where nothing was scanned.

    `now_us`: epoch microseconds.
    """
    scan = Scan(
        index_version=group.index_version,
        source=grouped.source,
        grouper=group.grouper,
        window_id=group.window_id,
        lane=group.lane,
        codec=found.codec if found is not None else "",
        probes=found.probes if found is not None else (),
        rows=found.rows.astype("<i8").tobytes() if found is not None else b"",
        estimates=found.estimates.astype("<f4").tobytes() if found is not None else b"",
        count=found.count if found is not None else 0,
        bytes_read=found.bytes_read if found is not None else 0,
    )
    value, headers = encode(
        scan,
        event_id=f"{grouped.source.place}/{group.grouper}/{group.window_id}/{group.lane}",
        source=SOURCE,
        time_us=now_us,
    )
    home = group.home_of(grouped)
    return Output(topic=SCANS.name, key=None, partition=home, value=value, headers=headers)


def result_of(scan: Scan) -> ScanResult | None:
    """Returns what a scan found; None where its rows and estimates make no sense."""
    if len(scan.rows) % 8 or len(scan.estimates) * 2 != len(scan.rows):
        return None
    rows, estimates = np.frombuffer(scan.rows, "<i8"), np.frombuffer(scan.estimates, "<f4")
    if not np.isfinite(estimates).all():
        return None
    return ScanResult(
        codec=scan.codec,
        probes=scan.probes,
        rows=rows.astype(np.int64),
        estimates=estimates.astype(np.float32),
        count=scan.count,
        bytes_read=scan.bytes_read,
    )

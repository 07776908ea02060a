"""The record of `rag.scans.v1`: what one lane found in its clusters for a query of another lane."""

from __future__ import annotations

from schemas.record import Count, Identifier, NonNegative, Record, Source
from schemas.retrieval import Probe


class Scan(Record, frozen=True, kw_only=True):
    """Rows that may be among the best of a query, by the codes of the clusters in `probes`.

    `source`, `grouper`, `window_id`: of the query in its group; `lane`: that scanned. `rows`: (n,)
    little-endian int64; `estimates` of their scores: (n,) little-endian float32, best first: all
    that may be among the best, of the best `count`. Clusters of the lane that are not in `probes`
    were not scanned; without a `codec` none were.
    """

    index_version: Identifier
    source: Source
    grouper: Identifier
    window_id: NonNegative
    lane: NonNegative
    codec: str = ""
    probes: tuple[Probe, ...] = ()
    rows: bytes = b""
    estimates: bytes = b""
    count: NonNegative = 0
    bytes_read: Count = 0

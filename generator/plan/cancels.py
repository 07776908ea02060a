"""Which queries are withdrawn: the cancels that were read, within a bound. Pure."""

from __future__ import annotations

from generator.plan.recent import Recent, digest_of
from schemas.cancel import Cancel
from schemas.record import Source


class Cancels:
    """The cancels of single records, and the latest of each id. Each call takes constant time.

    Not thread-safe: the caller locks. Forgets the oldest of more than `cancels_max` of each kind.
    """

    def __init__(self, *, cancels_max: int) -> None:
        self._records: Recent[bytes, bool] = Recent(cancels_max)
        self._ids: Recent[bytes, int] = Recent(cancels_max)

    def read(self, cancel: Cancel, written_ms: int) -> None:
        """Notes a cancel. `written_ms`: its timestamp, epoch milliseconds."""
        if cancel.source is not None:
            self._records.put(_record(cancel.query_id, cancel.source), True)
            return
        id = digest_of(cancel.query_id)
        self._ids.put(id, max(written_ms, self._ids.get(id) or 0))

    def is_withdrawn(self, query_id: str, source: Source) -> bool:
        """Returns whether this published record is withdrawn."""
        until_ms = self._ids.get(digest_of(query_id))
        if until_ms is not None and source.timestamp_ms <= until_ms:
            return True
        return _record(query_id, source) in self._records


def _record(query_id: str, source: Source) -> bytes:
    return digest_of(f"{source.place}/{query_id}")  # a client does not know the timestamp

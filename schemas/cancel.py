"""The record of `rag.cancels.v1`: an asker withdraws a question."""

from __future__ import annotations

from schemas.record import Identifier, Record, Source


class Cancel(Record, frozen=True, kw_only=True):
    """Withdraws the record `source`, as answers name it.

    Without a source: all records with this id that were published before this one.
    """

    query_id: Identifier
    source: Source | None = None

"""Finds the queries of a record and their headers, for spans and log lines."""

from __future__ import annotations

from typing import Any, NamedTuple

from carpool.loop.stage import Unit
from schemas.group import Group
from schemas.query import Query
from schemas.record import TRACEPARENT, Headers
from schemas.retrieval import Retrieval


class TracedQuery(NamedTuple):
    """A query, and the headers that name its trace. `query_id` None: the query is unreadable."""

    query_id: str | None
    headers: Headers


def queries_of(unit: Unit[Any]) -> tuple[TracedQuery, ...]:
    """Returns the query of each part of a unit."""
    record, headers = unit.record, unit.message.headers
    if isinstance(record, Group):
        return tuple(TracedQuery(each.query.query_id, each.headers) for each in record.queries)
    if isinstance(record, Retrieval):
        return (TracedQuery(record.query.query_id, headers),)
    return (
        TracedQuery(record.query_id if isinstance(record, Query) else None, headers),
    ) * unit.parts


def with_traceparent(headers: Headers, traceparent: str) -> Headers:
    """Returns `headers` with this `traceparent` instead of any other."""
    return (
        *(pair for pair in headers if pair[0] != TRACEPARENT),
        (TRACEPARENT, traceparent.encode()),
    )

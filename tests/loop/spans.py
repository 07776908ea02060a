"""Spans, and what makes them, for the tests of tracing."""

from __future__ import annotations

from schemas.query import Query
from schemas.record import Headers

ASKED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
ASKED_HEADERS: Headers = (
    ("traceparent", ASKED.encode()),
    ("tracestate", b"vendor=1"),
    ("x-app", b"y"),
)


def query(number: int) -> Query:
    return Query(query_id=f"q-{number}", text="?")

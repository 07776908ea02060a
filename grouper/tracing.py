"""The spans of the grouper: the planning of a window, and the context of each query."""

from __future__ import annotations

from collections.abc import Sequence

from carpool.loop.stage import Operation, Unit
from grouper.admission import Admitted
from grouper.plan.window import Window
from schemas.codec import with_key
from schemas.query import Query
from schemas.record import Headers, with_traceparent


def trace_headers(unit: Unit[Query]) -> Headers:
    """Returns the headers of the query and its key; a traced one gets the context of its span."""
    headers = with_key(unit.message.headers, unit.message.key)
    return with_traceparent(headers, unit.traceparents[0]) if unit.traceparents else headers


def plan_window(window: Window, queries: Sequence[Admitted], groups: int, now_us: int) -> Operation:
    """Returns the operations of all queries of a window, from its opening to its plan."""
    return Operation(
        name="plan window",
        started_us=window.opened_us,
        ended_us=now_us,
        attributes={
            "carpool.window.id": window.window_id,
            "carpool.window.queries": len(queries),
            "carpool.window.groups": groups,
            "carpool.window.open_us": window.closed_us - window.opened_us,
        },
        shared_by=tuple((query.unit.id, 0) for query in queries),
    )

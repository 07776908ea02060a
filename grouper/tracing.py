"""What a trace shows of the grouper: the planning of a window, and the context on which each of its
queries goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

from carpool.loop.stage import Unit
from carpool.loop.tracing.operation import Operation
from carpool.loop.tracing.queries import with_traceparent
from grouper.admission import Admitted
from grouper.plan.window import Window
from schemas.query import Query
from schemas.record import Headers


def trace_headers(unit: Unit[Query]) -> Headers:
    """Returns the query's headers as they came; the trace context among them, where it is traced,
    is that of its span here.
    """
    headers = unit.message.headers
    return with_traceparent(headers, unit.traceparents[0]) if unit.traceparents else headers


def plan_window(window: Window, queries: Sequence[Admitted], groups: int, now_us: int) -> Operation:
    """Returns what was done for the queries of a window together, from its opening until its groups
    were planned.
    """
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

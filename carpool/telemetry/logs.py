"""JSON log lines on standard error, one event a line (structlog, rendered by orjson)."""

from __future__ import annotations

import logging
import sys
from typing import Any

import orjson
import structlog

from carpool.terminal import harmless_json, without_password
from schemas.record import TRACEPARENT, Headers, Source, header


def configure_logs(*, service: str, level: str = "info") -> None:
    """Sets up logging once, at start, for standard-library loggers too.

    Work is identified by `query_id`, `trace_id`, `topic`, `partition` and `offset`.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    handler = logging.StreamHandler(sys.stderr)
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[remove_meta, structlog.processors.JSONRenderer(serializer=_json_line)],
            foreign_pre_chain=shared,
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("httpx", "httpx2", "httpcore", "httpcore2"):  # they log every request
        logging.getLogger(chatty).setLevel(logging.WARNING)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
    )
    structlog.contextvars.bind_contextvars(service=service)


def _json_line(event: Any, **_: Any) -> str:
    return without_password(harmless_json(orjson.dumps(event, default=str).decode()))


def about(source: Source, headers: Headers = (), *, query_id: str | None = None) -> dict[str, Any]:
    """Returns the fields of a log line about one record: its place, query and trace."""
    fields: dict[str, Any] = {
        "topic": source.topic,
        "partition": source.partition,
        "offset": source.offset,
    }
    if query_id is not None:
        fields["query_id"] = query_id
    trace_id = trace_id_of(headers)
    if trace_id is not None:
        fields["trace_id"] = trace_id
    return fields


def trace_id_of(headers: Headers) -> str | None:
    """Returns the trace id (32 hexadecimal digits) that a record's `traceparent` names, or None."""
    value = header(headers, TRACEPARENT)
    fields = (value or b"").split(b"-")
    if len(fields) < 4 or len(fields[1]) != 32:
        return None
    try:
        return f"{int(fields[1], 16):032x}" if int(fields[1], 16) else None
    except ValueError:
        return None

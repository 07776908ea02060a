"""Traces as OpenTelemetry spans, by its semantic conventions for messaging with Kafka.

A query has one span for each service, `process TOPIC`, a child of the span that sent its record.
Under it is a span `send TOPIC` for each record that the query produces; the record carries the
context of that span. An operation for many queries has a span of its own with a link to each:
a window, a group.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind
from opentelemetry.trace import Tracer as OtelApiTracer
from opentelemetry.trace.propagation import set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from carpool.kafka.records import Output
from carpool.loop.stage import Attribute, Done, Operation, Unit
from carpool.loop.work_observer import Tracer
from schemas.group import Group
from schemas.query import Query
from schemas.record import TRACEPARENT, Headers, header, with_traceparent
from schemas.retrieval import Retrieval
from schemas.topics import DEAD_LETTER_SUFFIX

LINKS_MAX = 128
"""Links of one span: OpenTelemetry's default limit."""

KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}

_PROPAGATOR = TraceContextTextMapPropagator()


@dataclass(slots=True)
class _PartSpans:
    """The span of a query in this service, and those of its uncommitted outputs."""

    process: Span
    sends: list[Span] = field(default_factory=list)


@dataclass(slots=True)
class _GroupSpan:
    """The span of a group, and how many of its queries are owed."""

    span: Span
    owed: int


class OtelTracer(Tracer):
    """Makes a span of each step of a record."""

    def __init__(self, tracer: OtelApiTracer, close: Callable[[], None], *, group: str) -> None:
        """`group`: the consumer group of the service. `close` exports what is left."""
        self._tracer = tracer
        self._close = close
        self._group = group
        self._lock = threading.Lock()
        self._parts: dict[tuple[int, int], _PartSpans] = {}
        self._groups: dict[int, _GroupSpan] = {}

    def opened(self, unit: Unit[Any]) -> tuple[str, ...]:
        """See `Tracer.opened`. A group has a span of its own, with a link to each query."""
        queries = _queries_of(unit)
        spans = {part: self._process(unit, *queries[part]) for _, part in unit.owed}
        contexts = [span.get_span_context() for span in spans.values()]
        with self._lock:
            for part, span in spans.items():
                self._parts[unit.id, part] = _PartSpans(span)
            if isinstance(unit.record, Group):
                self._groups[unit.id] = _GroupSpan(self._search_group(unit, contexts), len(spans))
        return tuple(
            _traceparent(spans[part]) if part in spans else _text(headers, TRACEPARENT)
            for part, (_, headers) in enumerate(queries)
        )

    def finished(self, done: Done, now_us: int) -> Done:
        """See `Tracer.finished`. Headers of dead letters stay as they are."""
        with self._lock:
            parts = [part for key in done.parts if (part := self._parts.get(key)) is not None]
            for part in parts:
                # Spans of discarded outputs: they were shared with a revoked partition.
                _end(part.sends, now_us, {"carpool.discarded": True})
            if not parts:
                return done
            for operation in done.operations:
                self._operation(operation, parts[0])
            outputs = tuple(self._sent(output, parts, now_us) for output in done.outputs)
        return replace(done, outputs=outputs)

    def completed(self, done: Done, now_us: int) -> None:
        with self._lock:
            for key in done.parts:
                part = self._parts.pop(key, None)
                if part is None:
                    continue
                _end(part.sends, now_us)
                part.process.end(now_us * 1_000)
                if (batch := self._groups.get(key[0])) is not None:
                    batch.owed -= 1
                    if batch.owed == 0:
                        self._groups.pop(key[0]).span.end(now_us * 1_000)

    def revoked(self, unit_ids: Iterable[int], now_us: int) -> None:
        gone = frozenset(unit_ids)
        with self._lock:
            for key in [key for key in self._parts if key[0] in gone]:
                part = self._parts.pop(key)
                _end([*part.sends, part.process], now_us, {"carpool.revoked": True})
            for unit_id in gone & self._groups.keys():
                _end([self._groups.pop(unit_id).span], now_us, {"carpool.revoked": True})

    def close(self) -> None:
        """See `Tracer.close`. Spans of uncommitted work are not exported: the work is repeated."""
        self._close()

    # Spans.

    def _process(self, unit: Unit[Any], query_id: str | None, headers: Headers) -> Span:
        attributes = self._record_attributes(unit)
        if query_id is not None:
            attributes["carpool.query.id"] = query_id
        return self._tracer.start_span(
            f"process {unit.source.topic}",
            context=_context(headers),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            start_time=unit.message.received_us * 1_000,
        )

    def _search_group(self, unit: Unit[Group], contexts: list[SpanContext]) -> Span:
        group = unit.record
        attributes = self._record_attributes(unit) | {
            "messaging.batch.message_count": len(group.queries),
            "carpool.window.id": group.window_id,
            "carpool.group.clusters": len(group.clusters),
        }
        return self._tracer.start_span(
            "process group",
            context=_context(unit.message.headers),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_links(contexts),
            start_time=unit.message.received_us * 1_000,
        )

    def _record_attributes(self, unit: Unit[Any]) -> dict[str, Attribute]:
        source = unit.source
        return _messaging("process", source.topic) | {
            "messaging.consumer.group.name": self._group,
            "messaging.destination.partition.id": str(source.partition),
            "messaging.kafka.offset": source.offset,
        }

    # With the lock acquired.

    def _sent(self, output: Output, parts: list[_PartSpans], now_us: int) -> Output:
        """Begins the span of an output: under its query, or with a link to each of its queries."""
        attributes = _messaging("send", output.topic)
        if output.partition is not None:
            attributes["messaging.destination.partition.id"] = str(output.partition)
        is_shared = len(parts) > 1
        if is_shared:
            attributes["messaging.batch.message_count"] = len(parts)
        send = self._tracer.start_span(
            f"send {output.topic}",
            context=Context() if is_shared else _under(parts[0].process),
            kind=SpanKind.PRODUCER,
            attributes=attributes,
            links=_links([part.process.get_span_context() for part in parts if is_shared]),
            start_time=now_us * 1_000,
        )
        parts[0].sends.append(send)
        if output.topic.endswith(DEAD_LETTER_SUFFIX):
            return output
        return replace(output, headers=with_traceparent(output.headers, _traceparent(send)))

    def _operation(self, operation: Operation, part: _PartSpans) -> None:
        shared = [
            self._parts[key].process.get_span_context()
            for key in operation.shared_by
            if key in self._parts
        ]
        self._tracer.start_span(
            operation.name,
            context=Context() if operation.shared_by else _under(part.process),
            kind=KINDS[operation.kind],
            attributes=operation.attributes,
            links=_links(shared),
            start_time=operation.started_us * 1_000,
        ).end(operation.ended_us * 1_000)


def _queries_of(unit: Unit[Any]) -> list[tuple[str | None, Headers]]:
    """Returns id and headers of the query of each part; id None: the query is unreadable."""
    record, headers = unit.record, unit.message.headers
    if isinstance(record, Group):
        return [(each.query.query_id, each.headers) for each in record.queries]
    if isinstance(record, Retrieval):
        record = record.query
    return [(record.query_id if isinstance(record, Query) else None, headers)] * unit.parts


def _messaging(operation: str, topic: str) -> dict[str, Attribute]:
    return {
        "messaging.system": "kafka",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }


def _links(contexts: list[SpanContext]) -> list[Link]:
    return [Link(context) for context in contexts[:LINKS_MAX]]


def _end(spans: list[Span], now_us: int, attributes: Mapping[str, Attribute] | None = None) -> None:
    for span in spans:
        span.set_attributes(attributes or {})
        span.end(now_us * 1_000)
    spans.clear()


def _context(headers: Headers) -> Context:
    """Returns the context that the headers name; an empty one where they name none."""
    carrier = {name: _text(headers, name) for name in (TRACEPARENT, "tracestate")}
    return _PROPAGATOR.extract({name: text for name, text in carrier.items() if text}, Context())


def _text(headers: Headers, name: str) -> str:
    return (header(headers, name) or b"").decode("ascii", errors="replace")


def _traceparent(span: Span) -> str:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, _under(span))
    return carrier[TRACEPARENT]


def _under(span: Span) -> Context:
    return set_span_in_context(span, Context())

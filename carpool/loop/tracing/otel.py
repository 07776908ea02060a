"""Traces as OpenTelemetry spans, by its semantic conventions for messaging with Kafka.

One span a query and service, `process TOPIC`, a child of the one before it; under it `send TOPIC`
for each record that comes of it, whose context that record carries. What is done for many at once
has a span of its own with a link to each: `poll TOPIC`, `commit TOPIC`, a window, a group.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind
from opentelemetry.trace import Tracer as OtelApiTracer
from opentelemetry.trace.propagation import set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from carpool.kafka.records import Output
from carpool.loop.stage import Done, Unit
from carpool.loop.tracing.export import Exporting
from carpool.loop.tracing.operation import Attribute, Operation
from carpool.loop.tracing.queries import TracedQuery, queries_of, with_traceparent
from schemas.group import Group
from schemas.record import TRACEPARENT, Headers, header
from schemas.topics import DEAD_LETTER_SUFFIX

LINKS_MAX = 128
"""Links of one span, as OpenTelemetry bounds them by default."""

KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}
OPERATION_TYPES = {"send": "send", "poll": "receive", "process": "process", "commit": "settle"}

_PROPAGATOR = TraceContextTextMapPropagator()


@dataclass(slots=True)
class _Part:
    """The span of a query in this service, and those of its outputs that are on their way."""

    process: Span
    topic: str
    sends: list[Span] = field(default_factory=list)


@dataclass(slots=True)
class _Batch:
    """The span of a record that carries several queries, and how many of them are still owed."""

    span: Span
    owed: int


class OtelTracer:
    """Implements `carpool.loop.tracing.tracer.Tracer`."""

    def __init__(self, tracer: OtelApiTracer, exporting: Exporting, *, group: str) -> None:
        """`group`: the consumer group of the service. `exporting` is closed with this."""
        self._tracer = tracer
        self._exporting = exporting
        self._group = group
        self._lock = threading.Lock()
        self._parts: dict[tuple[int, int], _Part] = {}
        self._batches: dict[int, _Batch] = {}
        self._opened: dict[str, list[SpanContext]] = {}  # since the last `polled`, by topic
        self._completed: dict[str, list[SpanContext]] = {}  # since the last `committed`, by topic

    def opened(self, unit: Unit[Any]) -> tuple[str, ...]:
        """See `Tracer.opened`. A record that carries several queries has a span of its own, with a
        link to each.
        """
        queries = queries_of(unit)
        owed = [part for part in range(unit.parts) if part not in unit.parts_done]
        spans = {part: self._process(unit, queries[part]) for part in owed}
        contexts = [span.get_span_context() for span in spans.values()]
        with self._lock:
            topic = unit.source.topic
            self._opened.setdefault(topic, []).extend(contexts)
            for part, span in spans.items():
                self._parts[unit.id, part] = _Part(span, topic)
            if isinstance(unit.record, Group):
                self._batches[unit.id] = _Batch(self._search_group(unit, contexts), len(owed))
        return tuple(
            _traceparent(spans[part])
            if part in spans
            else _text(queries[part].headers, TRACEPARENT)
            for part in range(unit.parts)
        )

    def polled(self, started_us: int, ended_us: int) -> None:
        """See `Tracer.polled`."""
        with self._lock:
            opened, self._opened = self._opened, {}
        self._together("poll", opened, started_us, ended_us)

    def finished(self, done: Done, now_us: int) -> Done:
        """See `Tracer.finished`. Dead letters keep the headers that they came with."""
        with self._lock:
            parts = [part for key in done.parts if (part := self._parts.get(key)) is not None]
            for part in parts:
                _end(
                    part.sends, now_us, {"carpool.discarded": True}
                )  # of an earlier try, which shared outputs
            if not parts:
                return done
            for operation in done.operations:
                self._operation(operation, parts[0])
            outputs = tuple(self._sent(output, parts, now_us) for output in done.outputs)
        return replace(done, outputs=outputs)

    def completed(self, done: Done, now_us: int) -> None:
        """See `Tracer.completed`."""
        with self._lock:
            for key in done.parts:
                part = self._parts.pop(key, None)
                if part is None:
                    continue
                _end(part.sends, now_us)
                part.process.end(now_us * 1_000)
                self._completed.setdefault(part.topic, []).append(part.process.get_span_context())
                self._one_less(key[0], now_us)

    def committed(self, started_us: int, ended_us: int) -> None:
        """See `Tracer.committed`."""
        with self._lock:
            completed, self._completed = self._completed, {}
        self._together("commit", completed, started_us, ended_us)

    def revoked(self, unit_ids: Iterable[int], now_us: int) -> None:
        """See `Tracer.revoked`."""
        gone = frozenset(unit_ids)
        with self._lock:
            for key in [key for key in self._parts if key[0] in gone]:
                part = self._parts.pop(key)
                _end([*part.sends, part.process], now_us, {"carpool.revoked": True})
            for unit_id in gone & self._batches.keys():
                _end([self._batches.pop(unit_id).span], now_us, {"carpool.revoked": True})

    def close(self) -> None:
        """See `Tracer.close`. What was not committed is not exported: another member will do it."""
        self._exporting.close()

    # Spans.

    def _process(self, unit: Unit[Any], query: TracedQuery) -> Span:
        attributes = self._record_attributes(unit)
        if query.query_id is not None:
            attributes["carpool.query.id"] = query.query_id
        return self._tracer.start_span(
            f"process {unit.source.topic}",
            context=_context(query.headers),
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

    def _together(
        self,
        operation: str,
        contexts: Mapping[str, list[SpanContext]],
        started_us: int,
        ended_us: int,
    ) -> None:
        """A span of its own for what was done for several records of a topic at once."""
        for topic, members in contexts.items():
            if not any(context.trace_flags.sampled for context in members):
                continue
            self._tracer.start_span(
                f"{operation} {topic}",
                context=Context(),
                kind=SpanKind.CLIENT,
                attributes=_messaging(operation, topic)
                | {
                    "messaging.consumer.group.name": self._group,
                    "messaging.batch.message_count": len(members),
                },
                links=_links(members),
                start_time=started_us * 1_000,
            ).end(ended_us * 1_000)

    # With the lock held.

    def _sent(self, output: Output, parts: list[_Part], now_us: int) -> Output:
        """Begins the span of an output: under its query's, or with a link to each of the queries
        that it is for.
        """
        attributes = _messaging("send", output.topic)
        if output.partition is not None:
            attributes["messaging.destination.partition.id"] = str(output.partition)
        is_shared = len(parts) > 1
        if is_shared:
            attributes["messaging.batch.message_count"] = len(parts)
        send = self._tracer.start_span(
            f"send {output.topic}",
            context=Context() if is_shared else set_span_in_context(parts[0].process, Context()),
            kind=SpanKind.PRODUCER,
            attributes=attributes,
            links=_links([part.process.get_span_context() for part in parts])
            if is_shared
            else None,
            start_time=now_us * 1_000,
        )
        parts[0].sends.append(send)
        if output.topic.endswith(DEAD_LETTER_SUFFIX):
            return output
        return replace(output, headers=with_traceparent(output.headers, _traceparent(send)))

    def _operation(self, operation: Operation, part: _Part) -> None:
        shared = [
            self._parts[key].process.get_span_context()
            for key in operation.shared_by
            if key in self._parts
        ]
        self._tracer.start_span(
            operation.name,
            context=Context()
            if operation.shared_by
            else set_span_in_context(part.process, Context()),
            kind=KINDS[operation.kind],
            attributes=operation.attributes,
            links=_links(shared),
            start_time=operation.started_us * 1_000,
        ).end(operation.ended_us * 1_000)

    def _one_less(self, unit_id: int, now_us: int) -> None:
        batch = self._batches.get(unit_id)
        if batch is None:
            return
        batch.owed -= 1
        if batch.owed == 0:
            self._batches.pop(unit_id).span.end(now_us * 1_000)


def _messaging(operation: str, topic: str) -> dict[str, Attribute]:
    return {
        "messaging.system": "kafka",
        "messaging.operation.name": operation,
        "messaging.operation.type": OPERATION_TYPES[operation],
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
    """The context that a record's headers name; an empty one, where they name none that can be
    read.
    """
    carrier = {name: _text(headers, name) for name in (TRACEPARENT, "tracestate")}
    return _PROPAGATOR.extract({name: text for name, text in carrier.items() if text}, Context())


def _text(headers: Headers, name: str) -> str:
    return (header(headers, name) or b"").decode("ascii", errors="replace")


def _traceparent(span: Span) -> str:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, set_span_in_context(span, Context()))
    return carrier[TRACEPARENT]

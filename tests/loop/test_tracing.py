"""Spans of one query across services: parents, links, and headers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from carpool.kafka.records import Output
from carpool.loop.stage import Done, Operation, Unit
from carpool.telemetry.logs import trace_id_of
from carpool.tracing.otel import OtelTracer
from schemas.group import GroupedQuery
from schemas.record import Headers, Record, header, with_traceparent
from tests.loop.spans import ASKED, ASKED_HEADERS, TRACE_ID, query
from tests.records import a_group, a_grouped_query, a_message, a_unit


class Traced:
    """A tracer that keeps its ended spans."""

    def __init__(self, group: str = "carpool-grouper") -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = OtelTracer(provider.get_tracer("test"), provider.shutdown, group=group)

    def open(
        self,
        unit_id: int,
        record: Record | None,
        headers: Headers = (),
        *,
        topic: str = "t",
        parts: int = 1,
    ) -> Unit:
        message = a_message(topic, unit_id, partition=2, headers=headers, received_us=1_000_000)
        unit = a_unit(unit_id, record, message, parts=parts)
        return replace(unit, traceparents=self.tracer.opened(unit))

    def spans(self) -> dict[str, ReadableSpan]:
        """By name; fails when two have the same."""
        found = self._exporter.get_finished_spans()
        assert len({span.name for span in found}) == len(found), [span.name for span in found]
        return {span.name: span for span in found}

    def all_spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()


def output(topic: str, headers: Headers = ()) -> Output:
    return Output(topic=topic, key=b"k", value=b"v", headers=headers)


def ids(span: ReadableSpan) -> tuple[str, str]:
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def parent_of(span: ReadableSpan) -> str | None:
    return None if span.parent is None else f"{span.parent.span_id:016x}"


def linked(span: ReadableSpan) -> set[tuple[str, str]]:
    return {
        (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in span.links
    }


def traceparent_of(output: Output) -> tuple[str, str]:
    _, trace_id, span_id, _ = (header(output.headers, "traceparent") or b"").decode().split("-")
    return trace_id, span_id


def test_a_query_has_one_span_under_its_sender_and_its_output_carries_the_send_span() -> None:
    traced = Traced()
    unit = traced.open(7, query(7), ASKED_HEADERS, topic="rag.queries.v1")
    chat = Operation(name="chat m", kind="client", started_us=1_500_000, ended_us=1_900_000)
    outputs = (output("rag.answers.v1", ASKED_HEADERS),)
    work = Done(parts=((7, 0),), outputs=outputs, operations=(chat,))
    done = traced.tracer.finished(work, 3_000_000)
    assert [span.name for span in traced.all_spans()] == ["chat m"], "others end with the commit"
    traced.tracer.completed(done, 4_000_000)
    spans = traced.spans()
    process, send = spans["process rag.queries.v1"], spans["send rag.answers.v1"]
    assert (ids(process)[0], parent_of(process)) == (TRACE_ID, "b7ad6b7169203331")
    assert parent_of(send) == ids(process)[1]
    assert unit.traceparents == ("00-{}-{}-01".format(*ids(process)),)
    assert traceparent_of(done.outputs[0]) == ids(send)
    assert header(done.outputs[0].headers, "tracestate") == b"vendor=1"
    assert header(done.outputs[0].headers, "x-app") == b"y"
    chat_span = spans["chat m"]
    assert parent_of(chat_span) == ids(process)[1]
    assert (chat_span.start_time, chat_span.end_time) == (1_500_000_000, 1_900_000_000)
    assert chat_span.kind is SpanKind.CLIENT
    assert (process.kind, send.kind) == (SpanKind.CONSUMER, SpanKind.PRODUCER)
    assert (process.start_time, process.end_time) == (1_000_000_000, 4_000_000_000)
    assert (send.start_time, send.end_time) == (3_000_000_000, 4_000_000_000)
    assert dict(process.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "rag.queries.v1",
        "messaging.consumer.group.name": "carpool-grouper",
        "messaging.destination.partition.id": "2",
        "messaging.kafka.offset": 7,
        "carpool.query.id": "q-7",
    }


@pytest.mark.parametrize(
    "bad",
    [
        None,
        b"",
        b"\xff\xfe",
        b"00-xyz-1-01",
        b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01",
        b"1" * 4_000,
    ],
)
def test_a_query_without_a_readable_trace_begins_one(bad: bytes | None) -> None:
    traced = Traced()
    headers = () if bad is None else (("traceparent", bad),)
    unit = traced.open(1, query(1), headers)
    done = traced.tracer.finished(Done(parts=((1, 0),), outputs=(output("o"),)), 2_000_000)
    traced.tracer.completed(done, 3_000_000)
    process = traced.spans()["process t"]
    assert process.parent is None
    assert unit.traceparents[0].split("-")[1] == ids(process)[0]
    assert traceparent_of(done.outputs[0])[0] == ids(process)[0]
    assert trace_id_of(headers) is None


def test_a_query_that_its_sender_does_not_sample_is_not_recorded() -> None:
    traced = Traced()
    unsampled = with_traceparent((), ASKED[:-2] + "00")
    traced.open(1, query(1), unsampled)
    done = traced.tracer.finished(Done(parts=((1, 0),), outputs=(output("o"),)), 2_000_000)
    traced.tracer.completed(done, 3_000_000)
    assert traced.all_spans() == ()
    value = header(done.outputs[0].headers, "traceparent") or b""
    assert value.startswith(f"00-{TRACE_ID}-".encode())
    assert value.endswith(b"-00")


def test_outputs_and_operations_for_several_queries_are_linked_to_each() -> None:
    traced = Traced()
    units = [traced.open(number, query(number), topic="rag.queries.v1") for number in range(3)]
    window = Operation(
        name="plan window",
        started_us=1,
        ended_us=2,
        attributes={"carpool.window.id": 4},
        shared_by=((0, 0), (1, 0), (2, 0)),
    )
    first = Done(parts=((0, 0), (2, 0)), outputs=(output("rag.groups.v1"),), operations=(window,))
    second = Done(parts=((1, 0),), outputs=(output("rag.answers.v1"),))
    dones = [traced.tracer.finished(done, 5_000_000) for done in (first, second)]
    for done in dones:
        traced.tracer.completed(done, 6_000_000)
    queries = {
        span.attributes["carpool.query.id"]: ids(span)
        for span in traced.all_spans()
        if span.name.startswith("process")
    }
    others = {span.name: span for span in traced.all_spans() if not span.name.startswith("process")}
    assert linked(others["plan window"]) == set(queries.values())
    group = others["send rag.groups.v1"]
    assert linked(group) == {queries["q-0"], queries["q-2"]}
    assert group.parent is None
    assert traceparent_of(dones[0].outputs[0]) == ids(group)
    assert (group.attributes or {})["messaging.batch.message_count"] == 2
    assert others["send rag.answers.v1"].parent is not None
    assert len({unit.traceparents[0] for unit in units}) == 3


def grouped(number: int, traceparent: str) -> GroupedQuery:
    return a_grouped_query(query(number), headers=(("traceparent", traceparent.encode()),))


def test_queries_of_a_group_keep_their_traces_and_the_group_is_linked_to_them() -> None:
    traced = Traced("carpool-searcher")
    other = ASKED.replace(TRACE_ID, "1" * 32)
    sent = with_traceparent((), "00-" + "2" * 32 + "-" + "3" * 16 + "-01")
    unit = traced.open(
        9, a_group(grouped(0, ASKED), grouped(1, other)), sent, topic="rag.groups.v1", parts=2
    )
    first, second = (
        traced.tracer.finished(
            Done(parts=((9, part),), outputs=(output("rag.retrievals.v1"),)), 2_000_000
        )
        for part in (0, 1)
    )
    traced.tracer.completed(first, 3_000_000)
    assert "process group" not in {span.name for span in traced.all_spans()}, (
        "a query is still owed"
    )
    traced.tracer.completed(second, 4_000_000)
    processes = [span for span in traced.all_spans() if span.name == "process rag.groups.v1"]
    assert [ids(span)[0] for span in processes] == [TRACE_ID, "1" * 32]
    assert [traceparent_of(done.outputs[0])[0] for done in (first, second)] == [TRACE_ID, "1" * 32]
    assert [text.split("-")[1] for text in unit.traceparents] == [TRACE_ID, "1" * 32]
    group = next(span for span in traced.all_spans() if span.name == "process group")
    assert (ids(group)[0], parent_of(group)) == ("2" * 32, "3" * 16)
    assert linked(group) == {ids(span) for span in processes}
    assert group.end_time == 4_000_000_000


def test_revoked_work_ends_its_spans_and_late_results_make_none() -> None:
    traced = Traced()
    traced.open(1, query(1))
    work = Done(parts=((1, 0),), outputs=(output("o", ASKED_HEADERS),))
    traced.tracer.finished(work, 2_000_000)
    traced.tracer.revoked([1, 2], 3_000_000)
    assert {
        (span.name, (span.attributes or {}).get("carpool.revoked")) for span in traced.all_spans()
    } == {("process t", True), ("send o", True)}
    assert traced.tracer.finished(work, 4_000_000) is work
    traced.tracer.completed(work, 5_000_000)
    assert len(traced.all_spans()) == 2


def test_a_dead_letter_keeps_its_headers() -> None:
    traced = Traced()
    traced.open(1, None, ASKED_HEADERS)
    done = Done(
        parts=((1, 0),),
        outputs=(output("rag.queries.v1.dlq", ASKED_HEADERS), output("rag.answers.v1")),
    )
    dead, answer = traced.tracer.finished(done, 2_000_000).outputs
    assert dead.headers == ASKED_HEADERS
    assert traceparent_of(answer)[0] == TRACE_ID

"""Spans on their way to a collector that is slow, rejects them, or does not exist."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from carpool.loop.stage import Done
from carpool.loop.tracing.export import SpanQueue
from carpool.loop.tracing.setup import is_traced, make_tracer
from carpool.telemetry.metrics import Metrics
from tests.loop.collector import Collector
from tests.loop.spans import ASKED_HEADERS, TRACE_ID, query
from tests.records import a_message, a_unit
from tests.waiting import WAIT_S, wait_until


class SlowExporter(SpanExporter):
    """Blocks until the test sets `may_go_on`."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.result = SpanExportResult.SUCCESS

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.may_go_on.wait(WAIT_S)
        return self.result

    def shutdown(self) -> None:
        self.may_go_on.set()


@pytest.fixture
def slow() -> Iterator[tuple[SlowExporter, SpanQueue, Metrics]]:
    exporter, metrics = SlowExporter(), Metrics()
    exporting = SpanQueue(exporter, metrics, queue_max=10, send_after_s=0.01)
    yield exporter, exporting, metrics
    exporter.may_go_on.set()
    exporting.close()


def outcomes(metrics: Metrics) -> dict[str, float]:
    return {
        sample.labels["outcome"]: sample.value
        for sample in next(iter(metrics.loop.spans.collect())).samples
        if sample.name.endswith("_total")
    }


def spans_of(count: int) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for _ in range(count):
        provider.get_tracer("t").start_span("s").end()
    return list(exporter.get_finished_spans())


def test_a_slow_collector_delays_no_work_and_dropped_spans_are_counted(
    slow: tuple[SlowExporter, SpanQueue, Metrics],
) -> None:
    exporter, exporting, metrics = slow
    spans = spans_of(200)
    exporting.on_end(spans[0])
    time.sleep(0.1)  # the first is being exported now, and does not come back
    started_s = time.monotonic()
    for span in spans[1:]:
        exporting.on_end(span)
    assert time.monotonic() - started_s < 0.5
    assert outcomes(metrics) == {"dropped": 189}
    exporter.may_go_on.set()
    exporting.close()
    assert outcomes(metrics) == {"dropped": 189, "exported": 11}


def test_rejected_spans_are_counted_and_an_exporter_that_raises_stops_nothing(
    slow: tuple[SlowExporter, SpanQueue, Metrics], monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, exporting, metrics = slow
    exporter.may_go_on.set()
    exporter.result = SpanExportResult.FAILURE
    first, second, third = spans_of(3)
    exporting.on_end(first)
    _wait_for(metrics, {"failed": 1})

    def broken(spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(exporter, "export", broken)
        exporting.on_end(second)
        _wait_for(metrics, {"failed": 2})
    exporter.result = SpanExportResult.SUCCESS
    exporting.on_end(third)
    _wait_for(metrics, {"failed": 2, "exported": 1})


def _wait_for(metrics: Metrics, wanted: dict[str, float]) -> None:
    wait_until(lambda: outcomes(metrics) == wanted, lambda: outcomes(metrics))


@pytest.mark.parametrize(
    ("environ", "traced"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "True"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_tracing_is_on_where_the_environment_names_a_collector(
    environ: dict[str, str], traced: bool
) -> None:
    assert is_traced(environ) is traced


def test_spans_reach_a_collector_with_the_name_of_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        metrics = Metrics()
        tracer = make_tracer(service="grouper", group="carpool-grouper", metrics=metrics)
        tracer.opened(a_unit(1, query(1), a_message("t", headers=ASKED_HEADERS)))
        tracer.completed(Done(parts=((1, 0),), outputs=()), 2_000_000)
        tracer.close()
        (span,) = collector.spans
    assert (span.service, span.name, span.trace_id) == ("carpool-grouper", "process t", TRACE_ID)
    assert span.schema_url.startswith("https://opentelemetry.io/schemas/")
    assert outcomes(metrics) == {"exported": 1}


def test_without_a_collector_no_tracing_library_is_loaded() -> None:
    program = (
        "import sys, carpool.run_service\n"
        "from carpool.telemetry.metrics import Metrics\n"
        "from carpool.loop.tracing.setup import make_tracer\n"
        "print(type(make_tracer(service='grouper', group='g', metrics=Metrics())).__name__)\n"
        "print(any(name.startswith('opentelemetry') for name in sys.modules))\n"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["Tracer", "False"]

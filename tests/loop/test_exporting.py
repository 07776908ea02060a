"""Spans reach the collector that the environment names, or nothing is traced."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from carpool.loop.stage import Done
from carpool.tracing import setup
from carpool.tracing.setup import is_traced, make_tracer
from tests.loop.collector import Collector
from tests.loop.spans import ASKED_HEADERS, TRACE_ID, query
from tests.records import a_message, a_unit


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
        tracer = make_tracer(service="grouper", group="carpool-grouper")
        tracer.opened(a_unit(1, query(1), a_message("t", headers=ASKED_HEADERS)))
        tracer.completed(Done(parts=((1, 0),), outputs=()), 2_000_000)
        tracer.close()
        (span,) = collector.spans
    assert (span.service, span.name, span.trace_id) == ("carpool-grouper", "process t", TRACE_ID)
    assert span.schema_url.startswith("https://opentelemetry.io/schemas/")


def test_a_collector_that_does_not_answer_delays_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "CLOSE_S", 0.2)
    with Collector() as collector:
        collector.delay_s = 5.0
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        tracer = make_tracer(service="grouper", group="carpool-grouper")
        tracer.opened(a_unit(1, query(1), a_message("t")))
        tracer.completed(Done(parts=((1, 0),), outputs=()), 2_000_000)
        started_s = time.monotonic()
        tracer.close()
        assert time.monotonic() - started_s < 4


def test_without_a_collector_no_tracing_library_is_loaded() -> None:
    program = (
        "import sys, carpool.run_service\n"
        "from carpool.tracing.setup import make_tracer\n"
        "print(type(make_tracer(service='grouper', group='g')).__name__)\n"
        "print(any(name.startswith('opentelemetry') for name in sys.modules))\n"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["Tracer", "False"]

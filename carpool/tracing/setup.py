"""Makes the tracer that OpenTelemetry's environment variables ask for."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

import carpool
from carpool.loop.work_observer import Tracer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = structlog.get_logger()

CLOSE_S = 3.0

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SEMANTIC_CONVENTIONS = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the semantic conventions for messaging and for generative AI."""


def is_traced(environ: Mapping[str, str]) -> bool:
    """Whether the environment names a collector and does not switch tracing off."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() not in ("", "otlp"):
        return False
    return any(environ.get(name, "").strip() for name in ENDPOINTS)


def make_tracer(*, service: str, group: str) -> Tracer:
    """Returns the tracer that the environment asks for; without one, a tracer that does nothing.

    Without the extra `tracing` it warns and traces nothing: a variable that is set for a whole
    cluster must not stop a service.
    """
    if not is_traced(os.environ):
        return Tracer()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from carpool.tracing.otel import OtelTracer
    except ModuleNotFoundError as error:
        log.warning("nothing is traced: pip install 'carpool[tracing]'", missing=error.name)
        return Tracer()
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # OpenTelemetry logs what fails
    provider = TracerProvider(resource=Resource.create(_resource(service)), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer = provider.get_tracer("carpool", carpool.__version__, schema_url=SEMANTIC_CONVENTIONS)
    log.info(
        "tracing",
        endpoint=next(os.environ[name] for name in ENDPOINTS[::-1] if os.environ.get(name)),
    )
    return OtelTracer(tracer, lambda: _shut_down(provider), group=group)


def _shut_down(provider: TracerProvider) -> None:
    """Exports what waits, for `CLOSE_S` at most."""
    thread = threading.Thread(target=provider.shutdown, name="spans", daemon=True)
    thread.start()
    thread.join(CLOSE_S)


def _resource(service: str) -> dict[str, str]:
    attributes = {
        "service.version": carpool.__version__,
        "service.instance.id": f"{service}@{socket.gethostname()}:{os.getpid()}",
    }
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    ):
        attributes["service.name"] = f"carpool-{service}"
    return attributes

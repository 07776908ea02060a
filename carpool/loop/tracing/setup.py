"""Is anything traced, and where do spans go? As the environment says, in OpenTelemetry's own
variables.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

import structlog

import carpool
from carpool.loop.tracing.tracer import NoTracer, Tracer
from carpool.telemetry.metrics import Metrics

log = structlog.get_logger()

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SEMANTIC_CONVENTIONS = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the semantic conventions that names and attributes follow, those for messaging and
for generative AI.
"""


def is_traced(environ: Mapping[str, str]) -> bool:
    """Returns whether the environment names a collector, and does not switch tracing off."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() not in ("", "otlp"):
        return False
    return any(environ.get(name, "").strip() for name in ENDPOINTS)


def make_tracer(*, service: str, group: str, metrics: Metrics) -> Tracer:
    """Returns the tracer that the environment asks for; one that does nothing where it asks for
    none.

    Without the extra `tracing` it is the latter, with a warning: a variable set for a whole cluster
    must not stop a service.
    """
    if not is_traced(os.environ):
        return NoTracer()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        from carpool.loop.tracing.export import Exporting
        from carpool.loop.tracing.otel import OtelTracer
    except ModuleNotFoundError as error:
        log.warning("nothing is traced: pip install 'carpool[tracing]'", missing=error.name)
        return NoTracer()
    logging.getLogger("opentelemetry").setLevel(
        logging.CRITICAL
    )  # `Exporting` says once what it would say every time
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    exporting = Exporting(OTLPSpanExporter(), metrics)
    provider = TracerProvider(resource=Resource.create(_resource(service)), shutdown_on_exit=False)
    provider.add_span_processor(exporting)
    tracer = provider.get_tracer("carpool", carpool.__version__, schema_url=SEMANTIC_CONVENTIONS)
    log.info(
        "tracing",
        endpoint=next(os.environ[name] for name in ENDPOINTS[::-1] if os.environ.get(name)),
    )
    return OtelTracer(tracer, exporting, group=group)


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

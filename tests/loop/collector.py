"""A collector of traces for tests: accepts OTLP over HTTP and keeps every span."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.waiting import WAIT_S, wait_until


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A received span. Ids are hexadecimal; links: (trace, span) ids."""

    service: str
    schema_url: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]


class Collector:
    """A context manager. `delay_s`: of its replies."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        self.delay_s = 0.0
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(collector.delay_s)
                assert self.path == "/v1/traces", self.path
                assert self.headers["Content-Type"] == "application/x-protobuf"
                is_zipped = self.headers.get("Content-Encoding") == "gzip"
                collector.spans += _spans(gzip.decompress(body) if is_zipped else body)
                reply = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, format: str, *args: object) -> None:
                """Keeps quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """What OTEL_EXPORTER_OTLP_ENDPOINT is set to."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def wait_for(self, is_there: Callable[[list[Seen]], bool]) -> list[Seen]:
        """Returns all spans once `is_there`."""
        wait_until(
            lambda: is_there(list(self.spans)),
            lambda: [(span.service, span.name) for span in self.spans],
        )
        return list(self.spans)

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(WAIT_S)


def _spans(body: bytes) -> list[Seen]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        Seen(
            service=_attributes(of_resource.resource.attributes).get("service.name", ""),
            schema_url=of_scope.schema_url,
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            attributes=_attributes(span.attributes),
            links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        )
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(each) for each in value.array_value.values)
    return getattr(value, kind) if kind else None

"""The three HTTP pages, and the one list of metrics."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from carpool.errors import ConfigError
from carpool.telemetry import http
from carpool.telemetry.http import TelemetryServer
from carpool.telemetry.metrics import Metrics
from schemas.errors import REASONS
from tests.waiting import WAIT_S, wait_until

CHANGES = (b"Date", b"Content-Length")
"""Headers that may differ between two requests: /metrics has the time that the process used."""


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=WAIT_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def serve(not_ready: Callable[[], list[str]], **given: Any) -> TelemetryServer:
    defaults = {"port": 0, "registry": CollectorRegistry(), "is_alive": lambda: True}
    return TelemetryServer(host="127.0.0.1", not_ready=not_ready, **defaults | given)


def test_the_pages_report_liveness_and_readiness() -> None:
    metrics, missing, alive = Metrics(), ["index"], [True]
    server = serve(
        lambda: missing, notes=lambda: ["one"], registry=metrics.registry, is_alive=lambda: alive[0]
    )
    try:
        metrics.loop.dead_letters.labels(reason="empty").inc()
        assert get(server.port, "/healthz") == (200, '{"alive":true}')
        assert get(server.port, "/readyz") == (
            503,
            '{"ready":false,"missing":["index"],"notes":["one"]}',
        )
        missing.clear()
        alive[0] = False
        assert get(server.port, "/readyz") == (200, '{"ready":true,"missing":[],"notes":["one"]}')
        assert get(server.port, "/healthz")[0] == 503
        metric = 'carpool_dead_letters_total{reason="empty"} 1.0'
        page = get(server.port, "/metrics?x=1")[1]
        assert metric in page
        assert "process_resident_memory_bytes " in page
        status, text = get(server.port, "/etc/passwd")
        assert (status, json.loads(text)["pages"]) == (404, ["/healthz", "/readyz", "/metrics"])
        with pytest.raises(ConfigError, match=r"http\.port"):
            serve(list, port=server.port)
    finally:
        server.close()


def test_a_client_that_closes_its_connection_is_not_logged(
    capfd: pytest.CaptureFixture[str],
) -> None:
    asked, may_answer = threading.Event(), threading.Event()

    def not_ready() -> list[str]:
        asked.set()
        may_answer.wait(WAIT_S)
        return ["x" * 10_000_000]

    server = serve(not_ready)
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            assert asked.wait(WAIT_S)
        may_answer.set()
        assert get(server.port, "/healthz")[0] == 200, "it goes on"
    finally:
        server.close()
    assert "Traceback" not in capfd.readouterr().err


def raw(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_head_is_answered_as_get_without_the_body() -> None:
    server = serve(list)
    try:
        for page in ("/healthz", "/readyz", "/metrics", "/other"):
            asked = (f"{method} {page} HTTP/1.0\r\n\r\n" for method in ("GET", "HEAD"))
            got, head = (raw(server.port, request.encode()) for request in asked)
            lines = [reply.partition(b"\r\n\r\n")[0].splitlines() for reply in (got, head)]
            same = [[one for one in each if not one.startswith(CHANGES)] for each in lines]
            assert same[0] == same[1]
            assert b"Content-Length: " in head and head.endswith(b"\r\n\r\n")
    finally:
        server.close()


def threads_of_connections() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_slow_clients_have_few_threads_and_shut_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 4)
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 600.0)
    server = serve(list)
    before = threads_of_connections()
    slow = []
    try:
        for _ in range(40):
            slow.append(socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S))
            slow[-1].sendall(b"GET /healthz HT")
        assert get(server.port, "/healthz") == (200, '{"alive":true}')
        assert threads_of_connections() - before <= 4
        assert slow[0].recv(10) == b"", "the oldest was closed"
    finally:
        for connection in slow:
            connection.close()
        server.close()


def test_a_request_that_takes_too_long_is_closed_although_bytes_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.3)
    server = serve(list)
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=0.05) as connection:

            def is_closed() -> bool:
                try:
                    connection.sendall(b"x")
                    return connection.recv(1) == b""
                except TimeoutError:
                    return False
                except ConnectionError:
                    return True

            wait_until(is_closed, "the connection is closed")
        assert get(server.port, "/healthz")[0] == 200
    finally:
        server.close()


def test_every_metric_has_the_prefix_a_unit_and_a_meaning() -> None:
    metrics = Metrics()
    for family in metrics.registry.collect():
        assert family.name.startswith("carpool_"), family.name
        assert family.documentation.endswith("."), family.name
        if family.type == "histogram":
            units = {"seconds", "queries", "ratio", "windows", "steps", "rounds"}
            assert family.name.rpartition("_")[2] in units, family.name
    for reason in REASONS:  # the first letter of each is a rise from zero
        labels = {"reason": reason}
        assert metrics.registry.get_sample_value("carpool_dead_letters_total", labels) == 0

"""Reads HTTP pages of processes: readiness, health, metrics."""

from __future__ import annotations

import http.client
import re
import socket
from typing import Literal
from urllib.parse import urlsplit

import msgspec

TIMEOUT_S = 1.0
_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([-+0-9.eE]+|NaN|[-+]Inf)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')

Labels = tuple[tuple[str, str], ...]


def get(url: str, timeout_s: float = TIMEOUT_S) -> tuple[int, bytes]:
    """Returns (status, body) of a page; (0, reason) without an answer. Blocks for up to
    `timeout_s`.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", parts.path or "/")
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        return 0, str(error).encode()
    finally:
        connection.close()


def probe_service(address: str) -> str:
    """Probes a service: its /readyz."""
    status, body = get(f"http://{address}/readyz")
    if status == 200:
        return ""
    return "; ".join(missing_of(body)) if status else "not listening yet"


def missing_of(body: bytes) -> list[str]:
    """Returns what a /readyz page says is missing."""
    return listed(body, "missing") or ["not ready"]


def listed(body: bytes, name: Literal["missing", "notes"]) -> list[str]:
    """Returns a list of a /readyz page; none if it is no such page."""
    try:
        return [str(each) for each in msgspec.json.decode(body)[name]]
    except (msgspec.DecodeError, KeyError, TypeError):
        return []


def probe_vllm(address: str) -> str:
    """Probes vLLM: its /health, which answers once the model is loaded."""
    status, _ = get(f"http://{address}/health")
    return "" if status == 200 else "is loading the model (a small one: about a minute)"


def probe_port(address: str) -> str:
    """Probes a server that is ready when it accepts connections."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), TIMEOUT_S).close()
    except OSError:
        return "not listening yet"
    return ""


def parse_metrics(text: str) -> dict[tuple[str, Labels], float]:
    """Returns the samples of a Prometheus text page by name and sorted labels."""
    samples = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.match(line)
        if match is not None:
            samples[match[1], tuple(sorted(_LABEL.findall(match[2] or "")))] = float(match[3])
    return samples

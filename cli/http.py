"""Reads HTTP pages of processes: readiness, health, metrics, and what these report."""

from __future__ import annotations

import http.client
import re
import socket
import time
from collections import Counter
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from cli.status_verdict import PartitionIdle, ServiceStatus

TIMEOUT_S = 1.0
_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([-+0-9.eE]+|NaN|[-+]Inf)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


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


def parse_metrics(text: str) -> Samples:
    """Returns the samples of a Prometheus text page by name and sorted labels."""
    samples: Samples = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.match(line)
        if match is not None:
            samples[match[1], tuple(sorted(_LABEL.findall(match[2] or "")))] = float(match[3])
    return samples


def ask_service(name: str, address: str, reads: str) -> ServiceStatus:
    """Returns the status of the service at `address`. Blocks for some seconds."""
    code, body = get(f"http://{address}/readyz")
    if code == 0:
        return ServiceStatus(
            name=name, address=address, state="down", missing=["nothing answers there"], reads=reads
        )
    page_code, page = get(f"http://{address}/metrics")
    samples = parse_metrics(page.decode(errors="replace")) if page_code == 200 else {}
    progress_s = samples.get(("carpool_last_progress_timestamp_seconds", ()))
    return ServiceStatus(
        name=name,
        address=address,
        state="ready" if code == 200 else "not ready",
        missing=[] if code == 200 else missing_of(body),
        notes=listed(body, "notes"),
        reads=reads,
        index=next(
            (dict(labels)["version"] for name, labels in samples if name == "carpool_index_info"),
            None,
        ),
        is_paused=samples.get(("carpool_intake_paused", ()), 0.0) > 0,
        lag_records=_total(samples, "carpool_lag_records"),
        idle_s=_ago_s(progress_s) if progress_s else None,
        in_flight=_total(samples, "carpool_units_in_flight"),
        consumed=_total(samples, "carpool_records_consumed_total"),
        answers=_answers(samples),
        dead_letters=_total(samples, "carpool_dead_letters_total"),
        partitions=_partitions(samples),
    )


def _partitions(samples: Samples) -> list[PartitionIdle]:
    name = "carpool_partition_moved_timestamp_seconds"
    moved = [(dict(at), at_s) for (sample, at), at_s in sorted(samples.items()) if sample == name]
    return [
        PartitionIdle(topic=at["topic"], number=int(at["partition"]), idle_s=_ago_s(at_s))
        for at, at_s in moved
    ]


def _ago_s(timestamp_s: float) -> float:
    return round(max(0.0, time.time() - timestamp_s), 1)


def _total(samples: Samples, name: str) -> int:
    return int(sum(value for (sample, _), value in samples.items() if sample == name))


def _answers(samples: Samples) -> dict[str, int]:
    sums = Counter[str]()
    for (sample, labels), value in samples.items():
        if sample == "carpool_answers_total":
            sums[dict(labels)["status"]] += int(value)
    return dict(+sums)

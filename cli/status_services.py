"""What a service reports on its HTTP pages: readiness, work done, last progress."""

from __future__ import annotations

import time

from cli.http import Labels, get, listed, missing_of, parse_metrics
from cli.status_values import PartitionIdle, ServiceStatus

Samples = dict[tuple[str, Labels], float]


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
    found = []
    for (sample, labels), moved_s in sorted(samples.items()):
        if sample == "carpool_partition_moved_timestamp_seconds":
            at = dict(labels)
            found.append(
                PartitionIdle(
                    topic=at["topic"], number=int(at["partition"]), idle_s=_ago_s(moved_s)
                )
            )
    return found


def _ago_s(timestamp_s: float) -> float:
    return round(max(0.0, time.time() - timestamp_s), 1)


def _total(samples: Samples, name: str) -> int:
    return int(sum(value for (sample, _), value in samples.items() if sample == name))


def _answers(samples: Samples) -> dict[str, int]:
    sums: dict[str, int] = {}
    for (sample, labels), value in samples.items():
        if sample == "carpool_answers_total" and value:
            status = dict(labels)["status"]
            sums[status] = sums.get(status, 0) + int(value)
    return sums

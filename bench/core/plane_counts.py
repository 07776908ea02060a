"""What a search plane counts, as benchmarks report it. Light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carpool.telemetry.metrics import Metrics


def bytes_read(metrics: Metrics) -> tuple[int, int]:
    """Returns the bytes that the searcher has read on demand, and those read ahead."""
    count = metrics.registry.get_sample_value
    demanded, codes, ahead = (
        int(count("carpool_bytes_read_total", {"purpose": purpose}) or 0)
        for purpose in ("demand", "codes", "prefetch")
    )
    return demanded + codes, ahead

"""What a search plane counts, as benchmarks report it. Light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carpool.telemetry.metrics import Metrics


def bytes_read(metrics: Metrics) -> int:
    """Returns the bytes that the searcher has read from disk: clusters, codes, rows, and ahead."""
    return sum(
        int(metrics.registry.get_sample_value("carpool_bytes_read_total", {"purpose": each}) or 0)
        for each in ("demand", "codes", "prefetch")
    )

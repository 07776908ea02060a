"""What vLLM says of its load, on its page GET /metrics."""

from __future__ import annotations

import math

from prometheus_client.parser import text_string_to_metric_families

_WAITING = "vllm:num_requests_waiting"


def requests_waiting(page: str) -> int | None:
    """Returns how many requests all engines of a server let wait; None if the page does not say.

    `page`: Prometheus's text format.
    """
    lines = "\n".join(line for line in page.splitlines() if line.startswith(_WAITING))
    try:
        samples = [
            each for family in text_string_to_metric_families(lines) for each in family.samples
        ]
    except (IndexError, ValueError):
        return None
    counts = [each.value for each in samples if each.name == _WAITING]
    if not counts or not all(0 <= count < math.inf for count in counts):
        return None
    return int(sum(counts))

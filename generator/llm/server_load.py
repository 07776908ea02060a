"""What vLLM says of its load, on its page GET /metrics."""

from __future__ import annotations

import math

_WAITING = "vllm:num_requests_waiting"


def requests_waiting(page: str) -> int | None:
    """Returns how many requests all engines of a server let wait; None if the page does not say.

    `page`: Prometheus's text format.
    """
    counts: list[float] = []
    for line in page.splitlines():
        if line.partition("{")[0].partition(" ")[0] != _WAITING:
            continue
        # The value stands after the labels, which may hold spaces. A timestamp may follow it.
        rest = line.rpartition("}")[2] if "{" in line else line.removeprefix(_WAITING)
        try:
            count = float(rest.split()[0])
        except (IndexError, ValueError):
            return None
        if not math.isfinite(count) or count < 0:
            return None
        counts.append(count)
    return int(sum(counts)) if counts else None

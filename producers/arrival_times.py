"""The arrival times of a load, as pure functions of rate and seed.

Times are *intended* sending times, in microseconds after the start. The load is open: a question is
due whether or not earlier ones were answered, so a slow system does not slow its own load.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

US_PER_S = 1_000_000


def poisson(rate_per_s: float, seed: int) -> Iterator[int]:
    """Yields the arrival times of a Poisson process without end, the same for one seed."""
    # Intervals of a Poisson process are exponential: seconds = -ln(U) / rate.
    generator = random.Random(seed)
    at_us = 0.0
    while True:
        at_us += generator.expovariate(rate_per_s) * US_PER_S
        yield int(at_us)


def even(rate_per_s: float) -> Iterator[int]:
    """Yields arrival times at equal distances without end, the first at 0."""
    index = 0
    while True:
        yield int(index * US_PER_S / rate_per_s)  # multiplied, not added up: no drift
        index += 1

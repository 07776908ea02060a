"""The arrival times of a load, as pure functions of rate, seed and length.

Times are *intended* sending times, in microseconds after the start. The load is open: a question is
due whether or not earlier ones were answered, so a slow system does not slow its own load.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Literal

from carpool.errors import ConfigError

ArrivalProcess = Literal["poisson", "even", "recorded"]

US_PER_S = 1_000_000


def poisson(rate_per_s: float, seed: int) -> Iterator[int]:
    """Yields the arrival times of a Poisson process without end, the same for one seed.

    Raises `ConfigError` when the rate is not positive.
    """
    _check_rate(rate_per_s)
    # Intervals of a Poisson process are exponential: seconds = -ln(U) / rate.
    generator = random.Random(seed)
    at_us = 0.0
    while True:
        at_us += generator.expovariate(rate_per_s) * US_PER_S
        yield int(at_us)


def even(rate_per_s: float) -> Iterator[int]:
    """Yields arrival times at equal distances without end, the first at 0.

    Raises `ConfigError` when the rate is not positive.
    """
    _check_rate(rate_per_s)
    index = 0
    while True:
        yield int(index * US_PER_S / rate_per_s)  # multiplied, not added up: no drift
        index += 1


def recorded(times_ms: Iterable[float], speed: float = 1.0) -> Iterator[int]:
    """Yields the arrival times of a recording, the first at 0, `speed` times as fast.

    `times_ms` are milliseconds of any epoch. Raises `ConfigError` when they decrease.
    """
    _check_rate(speed)
    first: float | None = None
    last = 0
    for row, time_ms in enumerate(times_ms):
        first = time_ms if first is None else first
        at_us = int((time_ms - first) * 1_000 / speed)
        if at_us < last:
            raise ConfigError(f"the recorded times decrease at row {row}: sort the file by `at_ms`")
        last = at_us
        yield at_us


def bounded(
    times_us: Iterator[int], *, duration_s: float | None, limit: int | None
) -> Iterator[int]:
    """Yields at most `limit` of `times_us`, all before `duration_s`; None: no limit."""
    for at_us in islice(times_us, limit):
        if duration_s is not None and at_us >= duration_s * US_PER_S:
            return
        yield at_us


def _check_rate(rate: float) -> None:
    if not 0 < rate < float("inf"):
        raise ConfigError(f"a rate or speed of {rate} never sends anything; give a number above 0")

"""Limits the intake rate of batch work while there is urgent work. Pure.

A token bucket. Its rate increases slowly and decreases fast, by the wait of threads for a CPU.
"""

from __future__ import annotations

URGENT_RECENTLY_US = 1_000_000
"""The limit applies for this long after a record of a higher class."""
REVIEW_US = 200_000
BURST_US = 100_000
"""The size of a burst, in time at the current rate.

Small bursts make small windows; large ones keep the CPUs busy for as long.
"""
SLOWER = 0.7
FASTER = 1.02
"""Factors for each review. Overload shows late, so the rate falls fast and rises slowly."""
BEGIN_SHARE = 8
"""The limit begins at this fraction (1/8) of the rate before it."""
SMOOTHING = 0.2
"""Weight of the newest measurement."""
RATE_MIN = 64 * 1024
"""Bytes a second that are always allowed, so that batch work never starves."""


class AdaptiveRateLimit:
    """Bytes a second, by `intake_queues.cost_bytes`. Not thread-safe.

    Limits the rate only: a record larger than a burst is allowed, and later records wait longer.
    """

    def __init__(self, cpu_wait_us_max: int) -> None:
        """`cpu_wait_us_max`: the mean wait for a CPU above which the rate falls; 0: no limit."""
        self._cpu_wait_us_max = cpu_wait_us_max
        self._urgent_until_us = 0
        self._rate = 0.0  # 0: not known yet
        self._tokens = 0.0
        self._is_open = True
        self._filled_us = 0
        self._reviewed_us = 0
        self._taken = 0
        self._taken_rate = 0.0
        self._cpu_wait_us = 0.0

    @property
    def rate(self) -> float:
        """Bytes a second; 0 before the first record."""
        return self._rate

    def urgent(self, now_us: int) -> None:
        """Notes a record of a higher class. The first one stops batch records for a while.

        The service is then full of batch records that it accepted before.
        """
        if not self._is_on(now_us):
            self._rate = max(RATE_MIN, self._taken_rate / BEGIN_SHARE)
            self._tokens, self._is_open = 0.0, False
        self._urgent_until_us = now_us + URGENT_RECENTLY_US

    def took(self, cost_bytes: int) -> None:
        """Notes an accepted record."""
        self._taken += cost_bytes
        self._tokens -= cost_bytes

    def may_take(self, now_us: int) -> bool:
        """Whether a record may be accepted now."""
        elapsed_us, self._filled_us = now_us - self._filled_us, now_us
        burst = self._rate * BURST_US / 1_000_000
        self._tokens = min(burst, self._tokens + self._rate * elapsed_us / 1_000_000)
        self._is_open = self._tokens > 0 if self._is_open else self._tokens >= burst
        return self._is_open or not self._is_on(now_us)

    def is_review_due(self, now_us: int) -> bool:
        """Whether to call `review`."""
        return now_us - self._reviewed_us >= REVIEW_US

    def review(self, now_us: int, cpu_wait_us: float | None) -> None:
        """Adapts the rate to the mean wait for a CPU since the last review; None: unknown."""
        seconds = max(REVIEW_US, now_us - self._reviewed_us) / 1_000_000
        self._reviewed_us = now_us
        self._taken_rate += SMOOTHING * (self._taken / seconds - self._taken_rate)
        self._taken = 0
        self._cpu_wait_us += SMOOTHING * ((cpu_wait_us or 0.0) - self._cpu_wait_us)
        most = 2 * self._taken_rate + RATE_MIN  # the rate does not grow unused
        if cpu_wait_us is None or not self._is_on(now_us):
            self._rate = most
        elif self._cpu_wait_us > self._cpu_wait_us_max:
            self._rate = max(RATE_MIN, SLOWER * min(self._rate, most))
        else:
            self._rate = max(RATE_MIN, min(FASTER * self._rate, most))

    def _is_on(self, now_us: int) -> bool:
        return self._cpu_wait_us_max > 0 and now_us < self._urgent_until_us

"""How fast may batch work be taken in beside interactive work? As fast as the CPUs bear: slow
increase and fast decrease of a token bucket's rate, by how long threads wait for a CPU. Pure: no
clock.
"""

from __future__ import annotations

URGENT_LATELY_US = 1_000_000
"""So long after a record of a higher class there is a pace; without any, there is none."""
REVIEW_US = 200_000
BURST_US = 100_000
"""What is let go at once: small bursts make small windows, large ones keep CPUs busy for as
long.
"""
SLOWER = 0.7
FASTER = 1.02
"""By the review. What was too much shows late, when it is on its way through all services: quickly
back, slowly forward.
"""
BEGIN_SHARE = 8
"""A pace begins with one part in so many of what was taken in before."""
SMOOTHING = 0.2
"""Weight of the newest measurement."""
RATE_MIN = 64 * 1024
"""Bytes a second that always go: nobody starves."""


class AdaptiveRateLimit:
    """A rate in bytes a second, as `carpool.loop.priority.intake_queues` counts what records cost.
    Not thread-safe.

    Bounds no more than the rate: a record that is larger than a burst goes, and is paid for after.
    """

    def __init__(self, cpu_wait_us_max: int) -> None:
        """`cpu_wait_us_max`: the mean wait for a CPU above which the rate falls; 0: there is never
        a pace.
        """
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
        """Bytes a second; 0 before anything was taken."""
        return self._rate

    def urgent(self, now_us: int) -> None:
        """Says that a record of a higher class came. The first finds a service full of what came
        before it: that goes first.
        """
        if not self._is_on(now_us):
            self._rate = max(RATE_MIN, self._taken_rate / BEGIN_SHARE)
            self._tokens, self._is_open = 0.0, False
        self._urgent_until_us = now_us + URGENT_LATELY_US

    def took(self, cost_bytes: int) -> None:
        """Says that a record was taken in."""
        self._taken += cost_bytes
        self._tokens -= cost_bytes

    def may_take(self, now_us: int) -> bool:
        """Returns whether a record may be taken in now."""
        elapsed_us, self._filled_us = now_us - self._filled_us, now_us
        burst = self._rate * BURST_US / 1_000_000
        self._tokens = min(burst, self._tokens + self._rate * elapsed_us / 1_000_000)
        self._is_open = self._tokens > 0 if self._is_open else self._tokens >= burst
        return self._is_open or not self._is_on(now_us)

    def is_review_due(self, now_us: int) -> bool:
        """Returns whether `review` is to be called."""
        return now_us - self._reviewed_us >= REVIEW_US

    def review(self, now_us: int, cpu_wait_us: float | None) -> None:
        """Takes in how long threads waited for a CPU lately, on average; None: that is not known,
        and nothing is slowed down.
        """
        seconds = max(REVIEW_US, now_us - self._reviewed_us) / 1_000_000
        self._reviewed_us = now_us
        self._taken_rate += SMOOTHING * (self._taken / seconds - self._taken_rate)
        self._taken = 0
        self._cpu_wait_us += SMOOTHING * ((cpu_wait_us or 0.0) - self._cpu_wait_us)
        most = 2 * self._taken_rate + RATE_MIN  # what nobody uses does not grow
        if cpu_wait_us is None or not self._is_on(now_us):
            self._rate = most
        elif self._cpu_wait_us > self._cpu_wait_us_max:
            self._rate = max(RATE_MIN, SLOWER * min(self._rate, most))
        else:
            self._rate = max(RATE_MIN, min(FASTER * self._rate, most))

    def _is_on(self, now_us: int) -> bool:
        return self._cpu_wait_us_max > 0 and now_us < self._urgent_until_us

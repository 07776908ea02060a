"""The rate of batch work follows the wait for a CPU while there is urgent work."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from carpool.loop.priority.adaptive_rate_limit import (
    BEGIN_SHARE,
    RATE_MIN,
    REVIEW_US,
    URGENT_RECENTLY_US,
    AdaptiveRateLimit,
)
from carpool.loop.priority.priority_consumer import CpuWait

COST = 1_024
STEP_US = 10_000
BUSY, IDLE = 5_000.0, 10.0


class Run:
    """Endless batch work under a limit of 300 us."""

    def __init__(self, offered_per_step: int = 20) -> None:
        self.limit = AdaptiveRateLimit(300)
        self.offered = offered_per_step
        self.now_us = 1_000_000_000

    def advance(self, seconds: float, *, cpu_wait_us: float | None, urgent: bool) -> float:
        """Returns the bytes a second that were taken in."""
        taken = 0
        for _ in range(int(seconds * 1_000_000 / STEP_US)):
            self.now_us += STEP_US
            if urgent:
                self.limit.urgent(self.now_us)
            if self.limit.is_review_due(self.now_us):
                self.limit.review(self.now_us, cpu_wait_us)
            for _ in range(self.offered):
                if not self.limit.may_take(self.now_us):
                    break
                self.limit.took(COST)
                taken += COST
        return taken / seconds


def test_with_urgent_work_the_rate_falls_while_threads_wait_for_cpus() -> None:
    run = Run()
    full = run.advance(5, cpu_wait_us=BUSY, urgent=False)
    assert full == 20 * COST * 100, "no limit without urgent work"
    assert run.advance(0.1, cpu_wait_us=IDLE, urgent=True) <= full / BEGIN_SHARE, (
        "the first urgent record stops batch work for a moment"
    )
    run.advance(1, cpu_wait_us=BUSY, urgent=True)
    assert run.advance(5, cpu_wait_us=BUSY, urgent=True) < 0.1 * full
    run.advance(40, cpu_wait_us=IDLE, urgent=True)
    assert run.advance(2, cpu_wait_us=IDLE, urgent=True) > 0.9 * full
    run.now_us += URGENT_RECENTLY_US
    assert run.advance(1, cpu_wait_us=BUSY, urgent=False) == full, "no limit a second later"


def test_an_unknown_wait_does_not_limit_the_rate() -> None:
    run = Run()
    full = run.advance(2, cpu_wait_us=None, urgent=False)
    run.advance(2, cpu_wait_us=None, urgent=True)
    assert run.advance(2, cpu_wait_us=None, urgent=True) > 0.9 * full


@given(waits=st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_batch_work_never_starves(waits: list[float]) -> None:
    run = Run(offered_per_step=2)
    for wait in waits:
        run.advance(REVIEW_US / 1_000_000, cpu_wait_us=wait, urgent=True)
        assert run.limit.rate >= RATE_MIN
    assert run.advance(10, cpu_wait_us=BUSY, urgent=True) >= 0.8 * RATE_MIN


def test_the_wait_is_the_mean_of_the_runs_since_the_last_call(tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    wait = CpuWait(file)
    assert wait.mean_us() is None
    file.write_text("5 1000000 10\n")
    assert wait.mean_us() is None
    file.write_text("9 3000000 14\n")
    assert wait.mean_us() == 500.0
    assert wait.mean_us() == 0.0

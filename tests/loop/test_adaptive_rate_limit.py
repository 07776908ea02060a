"""Batch work is taken in beside urgent work as fast as the CPUs bear, and at any rate where nothing
urgent comes.
"""

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
from carpool.loop.priority.cpu_wait import CpuWait

COST = 1_024
STEP_US = 10_000
BUSY, IDLE = 5_000.0, 10.0


class Run:
    """Batch work that is offered without end, under a pace of 300 us."""

    def __init__(self, offered_per_step: int = 20) -> None:
        self.pace = AdaptiveRateLimit(300)
        self.offered = offered_per_step
        self.now_us = 1_000_000_000

    def pass_(self, seconds: float, *, cpu_wait_us: float | None, urgent: bool) -> float:
        """Returns the bytes a second that were taken."""
        taken = 0
        for _ in range(int(seconds * 1_000_000 / STEP_US)):
            self.now_us += STEP_US
            if urgent:
                self.pace.urgent(self.now_us)
            if self.pace.is_review_due(self.now_us):
                self.pace.review(self.now_us, cpu_wait_us)
            for _ in range(self.offered):
                if not self.pace.may_take(self.now_us):
                    break
                self.pace.took(COST)
                taken += COST
        return taken / seconds


def test_without_urgent_work_everything_is_taken_however_long_threads_wait() -> None:
    run = Run()
    assert run.pass_(5, cpu_wait_us=BUSY, urgent=False) == 20 * COST * 100


def test_beside_urgent_work_the_rate_falls_while_threads_wait_for_cpus() -> None:
    run = Run()
    full = run.pass_(2, cpu_wait_us=IDLE, urgent=False)
    run.pass_(1, cpu_wait_us=BUSY, urgent=True)
    slow = run.pass_(5, cpu_wait_us=BUSY, urgent=True)
    assert slow < 0.1 * full
    run.pass_(40, cpu_wait_us=IDLE, urgent=True)
    assert run.pass_(2, cpu_wait_us=IDLE, urgent=True) > 0.9 * full


def test_the_rate_rises_by_a_tenth_a_second_and_falls_by_five_sixths() -> None:
    run = Run()
    run.pass_(2, cpu_wait_us=IDLE, urgent=False)
    run.pass_(5, cpu_wait_us=BUSY, urgent=True)
    run.pass_(20, cpu_wait_us=IDLE, urgent=True)
    before = run.pace.rate
    run.pass_(1, cpu_wait_us=IDLE, urgent=True)
    assert 1.05 < run.pace.rate / before < 1.15
    before = run.pace.rate
    run.pass_(1, cpu_wait_us=BUSY, urgent=True)
    assert run.pace.rate < before / 4


def test_the_first_urgent_record_lets_what_came_before_it_go_first() -> None:
    run = Run()
    full = run.pass_(2, cpu_wait_us=IDLE, urgent=False)
    assert run.pass_(0.1, cpu_wait_us=IDLE, urgent=True) <= full / BEGIN_SHARE


def test_a_second_after_the_last_urgent_record_there_is_no_pace() -> None:
    run = Run()
    run.pass_(3, cpu_wait_us=BUSY, urgent=True)
    run.now_us += URGENT_RECENTLY_US
    assert run.pass_(1, cpu_wait_us=BUSY, urgent=False) == 20 * COST * 100


def test_where_the_wait_is_not_known_the_rate_grows_at_once() -> None:
    run = Run()
    full = run.pass_(2, cpu_wait_us=None, urgent=False)
    run.pass_(2, cpu_wait_us=None, urgent=True)
    assert run.pass_(2, cpu_wait_us=None, urgent=True) > 0.9 * full


@given(waits=st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_nobody_starves_whatever_is_measured(waits: list[float]) -> None:
    run = Run(offered_per_step=2)
    for wait in waits:
        run.pass_(REVIEW_US / 1_000_000, cpu_wait_us=wait, urgent=True)
        assert run.pace.rate >= RATE_MIN
    assert run.pass_(10, cpu_wait_us=BUSY, urgent=True) >= 0.8 * RATE_MIN


def test_the_wait_is_what_passed_since_the_last_look_for_each_time_the_thread_ran(
    tmp_path: Path,
) -> None:
    file = tmp_path / "schedstat"
    wait = CpuWait(file)
    assert wait.mean_us() is None
    file.write_text("5 1000000 10\n")
    assert wait.mean_us() is None
    file.write_text("9 3000000 14\n")
    assert wait.mean_us() == 500.0
    assert wait.mean_us() == 0.0, "it did not stop"

"""Shows progress of a long command: a line at the start and the end of each step, and between."""

from __future__ import annotations

from rich.console import Console

from carpool.clock import Clock

PLAIN_INTERVAL_US = 5_000_000


class ProgressReport:
    """Takes the progress of a long piece of work; this base shows nothing."""

    def start(self, step: str, total: int, done: int = 0) -> None:
        """Begins a step of `total` units; an earlier run did `done` of them."""

    def advance(self, count: int) -> None:
        """Reports `count` more finished units of the step."""

    def note(self, text: str) -> None:
        """Reports an event, in one line."""


SilentProgress = ProgressReport


class PlainProgress(ProgressReport):
    """Writes a line at the start and the end of each step, and every few seconds."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._step, self._total, self._done, self._resumed = "", 0, 0, 0
        self._started_us = self._said_us = 0

    def start(self, step: str, total: int, done: int = 0) -> None:
        self._step, self._total, self._done, self._resumed = step, total, done, done
        self._started_us = self._clock.now_us()
        self._said_us = self._started_us - PLAIN_INTERVAL_US // 2  # the first line comes early
        self._say(
            f"{step}: {done:,} of {total:,} were done before" if done else f"{step}: {total:,}"
        )

    def advance(self, count: int) -> None:
        """Counts, and writes a line every few seconds and at the end."""
        if not count:
            return
        self._done += count
        now_us = self._clock.now_us()
        if self._done >= self._total or now_us - self._said_us >= PLAIN_INTERVAL_US:
            self._said_us = now_us
            self._say(
                describe_progress(
                    self._step, self._done, self._total, self._resumed, now_us - self._started_us
                )
            )

    def note(self, text: str) -> None:
        self._say(text)

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def describe_progress(step: str, done: int, total: int, resumed: int, elapsed_us: int) -> str:
    """Returns a line such as "embedding: 1,024 of 3,000 (34 %), 85/s, 23 s left"."""
    rate = (done - resumed) * 1_000_000 / elapsed_us if elapsed_us > 0 else 0.0
    left = f", {(total - done) / rate:.0f} s left" if rate > 0 and done < total else ""
    speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
    return f"{step}: {done:,} of {total:,} ({100 * done // max(1, total)} %), {speed}/s{left}"

"""A refusal of the brokers is tried again after a growing pause: what they refuse may be mended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import structlog

from carpool.clock import Clock
from carpool.errors import CarpoolError, RetryableError

log = structlog.get_logger()

T = TypeVar("T")

PAUSE_US_MIN = 1_000_000
PAUSE_US_MAX = 60_000_000
"""A pause; each further one is twice as long."""
PASSING_US_MAX = 5_000_000
"""The longest pause after what passes by itself."""


class Refusal:
    """What is refused now, and when it is tried again. The thread that tries makes the calls."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._error: CarpoolError | None = None
        self._pause_us = 0
        self.until_us = 0
        """When the next try may begin, epoch microseconds."""

    def refused(self, error: CarpoolError) -> None:
        """Notes a refusal; the pause grows once for each try."""
        if self.is_waiting:
            return
        most_us = PASSING_US_MAX if isinstance(error, RetryableError) else PAUSE_US_MAX
        self._pause_us = min(max(2 * self._pause_us, PAUSE_US_MIN), most_us)
        self.until_us = self._clock.now_us() + self._pause_us
        self._error = error
        log.error("failed; it is tried again", error=str(error), after_s=self._pause_us / 1e6)

    def passed(self) -> None:
        """Notes that what was refused has succeeded."""
        if self._error is not None:
            log.info("what failed succeeds now", error=str(self._error))
        self._error, self._pause_us, self.until_us = None, 0, 0

    def insist(self, call: Callable[[], T], wait: Callable[[float], bool | None]) -> T | None:
        """Returns the result of `call`, made again after a pause while what it raises passes.

        Blocks. Raises what does not pass by itself. None: `wait` returned True.
        """
        while True:
            try:
                found = call()
            except RetryableError as error:
                self.refused(error)
                if wait(self._pause_us / 1e6):
                    return None
            else:
                self.passed()
                return found

    @property
    def is_waiting(self) -> bool:
        """Whether the next try is in the future."""
        return self._clock.now_us() < self.until_us

    @property
    def reason(self) -> str | None:
        """What is refused and when it is tried again, in words.

        None after a whole pause without a further refusal.
        """
        if (error := self._error) is None:
            return None
        wait_us = self.until_us - self._clock.now_us()
        if wait_us <= -self._pause_us:
            return None
        when = f"in {wait_us / 1e6:.0f} s" if wait_us > 0 else "now"
        return f"{error}; nothing is lost: it is tried again {when}"

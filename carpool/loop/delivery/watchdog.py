"""Detects calls of a client that never return.

librdkafka may block forever without a group coordinator (its issues 5456 and 5511).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from carpool.clock import Clock
from carpool.errors import CarpoolError

LOOK_S = 0.1
"""How often a thread that waits for a call checks how long the call takes."""


class CallWatchdog:
    """Watches one call at a time from another thread. A call that takes too long ends the service.

    Python cannot end a blocked thread.
    """

    def __init__(self, clock: Clock, fail: Callable[[CarpoolError], None], *, us_max: int) -> None:
        """`us_max`: how long a call may take, longer than its own time-out."""
        self._clock = clock
        self._fail = fail
        self._us_max = us_max
        self._began_us: int | None = None
        self.is_stuck = False
        """Whether a call took too long. Its result must not be used, should it still return."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watches the call inside the context."""
        self._began_us = self._clock.now_us()
        try:
            yield
        finally:
            self._began_us = None

    def look(self) -> None:
        """Ends the service if the call takes too long. Called from any other thread."""
        began_us = self._began_us
        if self.is_stuck or began_us is None or self._clock.now_us() - began_us <= self._us_max:
            return
        self.is_stuck = True
        self._fail(
            CarpoolError(
                f"a call to the brokers has not returned in {self._us_max / 1_000_000:g} s, which "
                "is longer than its time-out. Restart the service: its next life ends the "
                "transaction and does the work again. Nothing is lost."
            )
        )

    def run_watched(self, act: Callable[[], None]) -> None:
        """Runs `act` on another thread until it returns, raises, or a call in it is stuck."""
        failed: list[BaseException] = []

        def run() -> None:
            try:
                act()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, name="last-commit", daemon=True)
        thread.start()
        while thread.is_alive() and not self.is_stuck:
            thread.join(LOOK_S)
            self.look()
        if failed:
            raise failed[0]

"""Calls of a client that may never come back: librdkafka's do where a group coordinator is gone
(its issues 5456 and 5511).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from carpool.clock import Clock
from carpool.errors import CarpoolError

LOOK_S = 0.1
"""How often whoever waits for a call looks whether it lasts too long."""


class CallWatchdog:
    """One call at a time, which another thread watches: one that lasts too long ends the service. A
    thread cannot be ended.
    """

    def __init__(self, clock: Clock, fail: Callable[[CarpoolError], None], *, us_max: int) -> None:
        """`us_max`: how long a call may take, longer than its own time-out."""
        self._clock = clock
        self._fail = fail
        self._us_max = us_max
        self._began_us: int | None = None
        self.is_stuck = False
        """Whether a call lasted too long. Should it come back, what it did is not to be gone on
        with.
        """

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Has the call within watched."""
        self._began_us = self._clock.now_us()
        try:
            yield
        finally:
            self._began_us = None

    def look(self) -> None:
        """Ends the service when the call lasts too long. On any other thread."""
        began_us = self._began_us
        if self.is_stuck or began_us is None or self._clock.now_us() - began_us <= self._us_max:
            return
        self.is_stuck = True
        self._fail(
            CarpoolError(
                f"a call to the brokers has not come back in {self._us_max / 1_000_000:g} s, which "
                "is beyond its time-out; restart the service: its next life ends the transaction "
                "and does the work again. Nothing is lost."
            )
        )

    def run_watched(self, act: Callable[[], None]) -> None:
        """Acts on a thread of its own, so that this one finds out when a call within does not come
        back; then returns.
        """
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

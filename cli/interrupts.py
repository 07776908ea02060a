"""Ends long commands in order when they are interrupted."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stopped_by_signals(end: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C, or SIGTERM, calls `end`; a second Ctrl-C ends the process."""

    def stop(number: int, _: object) -> None:
        signal.signal(number, earlier[signal.Signals(number)])
        end()

    earlier = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)

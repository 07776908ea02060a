"""Threads whose failure ends the service, and the parts that one of them opens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import structlog

from carpool.errors import CarpoolError

log = structlog.get_logger()

P = TypeVar("P")
Fail = Callable[[CarpoolError], None]
CLOSE_S = 1.0


class Worker(Generic[P]):
    """The threads of a stage, and the `parts` that they work with: None until these are open.

    Thread-safe. An exception ends its own thread and goes to `fail`; the others go on.
    """

    _fail: Fail

    def __init__(self, missing: str = "", close: Callable[[P], object] = lambda _: None) -> None:
        """`missing`: in words, what the stage lacks until its parts are open."""
        self._missing = missing
        self._close_parts = close
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.is_closed = False
        self._failure = ""
        self.parts: P | None = None

    def start(self, fail: Fail, **runs: Callable[[], object]) -> None:
        """Starts a thread for each of `runs`, under its name. `fail`: see `Sink`."""
        self._fail = fail
        for name, run in runs.items():
            self.spawn(name, run)

    def open(self, open_parts: Callable[[], P]) -> P | None:
        """Opens the parts, on one of the threads, and returns them; None: `close` came before."""
        parts = open_parts()
        with self._lock:
            if not self.is_closed:
                self.parts = parts
                return parts
        self._close_parts(parts)
        return None

    def replace(self, parts: P) -> bool:
        """Works with other parts from now on, and forgets the earlier ones; False: it is closed."""
        with self._lock:
            if not self.is_closed:
                self.parts = parts
        return not self.is_closed

    def spawn(self, name: str, run: Callable[[], object]) -> None:
        """Starts another thread."""
        thread = threading.Thread(target=self._run, args=(run,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def not_ready(self) -> tuple[str, ...]:
        """Returns what has failed, or what is missing; nothing when the stage can work."""
        reason = self._failure or (self._missing if self.parts is None else "")
        return (reason,) if reason else ()

    def fail(self, error: Exception) -> None:
        """Ends the service. For any thread."""
        failure = as_failure(error)
        self._failure = str(failure)
        self._fail(failure)

    def close(self, stop: Callable[[], object]) -> None:
        """Ends the threads by `stop`; closes the parts if none hangs. Blocks up to `CLOSE_S`."""
        with self._lock:
            self.is_closed = True
        stop()
        until_s = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        if self.parts is not None and not any(thread.is_alive() for thread in self._threads):
            parts, self.parts = self.parts, None
            self._close_parts(parts)

    def _run(self, run: Callable[[], object]) -> None:
        try:
            run()
        except Exception as error:
            self.fail(error)


def as_failure(error: Exception) -> CarpoolError:
    """Returns an exception of this thread as what ends the service. One of a defect is logged."""
    if isinstance(error, CarpoolError):
        return error
    thread = threading.current_thread().name
    log.error("a thread failed", thread=thread, exc_info=error)
    return CarpoolError(
        f"the thread {thread!r} failed with {type(error).__name__}: {error}. This is a defect of "
        "Carpool: please report it with the log. Nothing is lost, a restart does it again"
    )

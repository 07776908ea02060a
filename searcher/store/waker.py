"""Wakes a thread that waits: an eventfd, to which any thread and the kernel may add."""

from __future__ import annotations

import os
import select


class Waker:
    """`wake` from any thread ends a `wait` of one thread. A wake before a wait is not lost."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLIN)

    def wake(self) -> None:
        """Ends the current wait, or the next. Does nothing after `close`."""
        if self.descriptor >= 0:
            os.eventfd_write(self.descriptor, 1)

    def wait(self, timeout_s: float | None) -> None:
        """Blocks until `wake`, at most `timeout_s`. Releases the GIL."""
        timeout_ms = None if timeout_s is None else max(0, timeout_s * 1_000)
        if self._poll.poll(timeout_ms):
            try:
                os.eventfd_read(self.descriptor)
            except BlockingIOError:
                return

    def close(self) -> None:
        """Frees the descriptor; no thread may wait."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

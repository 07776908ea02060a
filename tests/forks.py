"""Calls a function in a forked child, as preloading servers of applications do."""

from __future__ import annotations

import os
import select
import signal
import warnings
from collections.abc import Callable

CHILD_S = 30.0


def in_fork(function: Callable[[], str]) -> str:
    """Returns what `function` returns, or raises, in words, in a child; kills one that hangs."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads: the point
        child = os.fork()
    if child == 0:
        try:
            said = function()
        except BaseException as error:
            said = repr(error)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], CHILD_S)
    said = os.read(reading, 65_536).decode() if ready else f"hangs for {CHILD_S:g} s"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reading)
    return said

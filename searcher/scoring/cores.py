"""Which core a thread of the scoring pool runs on: as long as there is work, each on cores of its
own.

Linux often wakes a thread on the core of whoever woke it, although another one is idle, most of all
in a virtual machine, whose idle cores it takes for busy ones. The two then take turns until the
kernel balances its load, milliseconds later: on two cores of a virtual machine, idle before, that
befell two runs in three, and a lone query took 7.9 ms instead of 5.1.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Collection, Sequence


class ScoringCores:
    """Puts helpers on cores apart from the calling thread's, and from each other's where there are
    enough.

    Does nothing where the system does not say on which core a thread runs, or does not let it be
    chosen.
    """

    def __init__(self) -> None:
        """Looks whether the system can."""
        self._current_core = _current_core()
        self._caller = 0  # native id
        self._cores: Collection[int] = ()  # that the caller had, while it has one
        # The caller's core, its cores and the helpers when these were moved last.
        self._parted: tuple[int, Collection[int], Sequence[int]] | None = None

    def part(self, helpers: Sequence[int]) -> None:
        """Gives the calling thread the core that it is on, and `helpers` (native ids of threads)
        the others of its cores.

        Call `join` before the calling thread waits for anything else; until then, calling this
        again does nothing. Costs some microseconds; helpers that sleep are moved when they wake up,
        and keep their cores until the calling thread is on another.
        """
        if self._current_core is None or self._cores:
            return
        cores = os.sched_getaffinity(0)
        here = self._current_core()
        others = sorted(cores - {here})
        if not others or here not in cores:
            return
        try:
            if self._parted != (here, cores, helpers):
                for number, helper in enumerate(helpers):
                    os.sched_setaffinity(helper, others[number % len(others) :: len(helpers)])
                self._parted = (here, cores, helpers)
            os.sched_setaffinity(0, {here})
        except OSError:  # not allowed here; the next call would not be, either
            self._current_core = None
            return
        self._caller, self._cores = threading.get_native_id(), cores

    def join(self) -> None:
        """Lets the thread that called `part` run on all its cores again; from any thread. Safe to
        call twice.
        """
        if self._cores:
            with contextlib.suppress(OSError):  # it has ended
                os.sched_setaffinity(self._caller, self._cores)
            self._cores = ()


def _current_core() -> Callable[[], int] | None:
    """The C library's way to ask, called with the interpreter's lock held: it takes less than
    handing the lock over.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        current_core: Callable[[], int] = ctypes.PyDLL(None).sched_getcpu
    except (AttributeError, OSError):
        return None
    return current_core

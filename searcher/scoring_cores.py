"""Which core a thread of the scoring pool runs on: for the time of a run, each on cores of its own.

Linux often wakes a thread on the core of whoever woke it, although another one is idle, most of all in a virtual machine,
whose idle cores it takes for busy ones. The two then take turns until the kernel balances its load, milliseconds later: on
two cores of a virtual machine, idle before, that befell two runs in three, and a lone query took 7.9 ms instead of 5.1.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Collection, Sequence


class ScoringCores:
    """Puts helpers on cores apart from the calling thread's, and from each other's where there are enough.

    Does nothing where the system does not say on which core a thread runs, or does not let it be chosen.
    """

    def __init__(self) -> None:
        """Looks whether the system can."""
        self._current_core = _current_core()

    def part(self, helpers: Sequence[int]) -> Collection[int]:
        """Gives the calling thread the core that it is on, and `helpers` (native ids of threads) the others of its cores.

        Returns the cores that the calling thread had: give them to `join` soon. None of them: nothing was done. Costs a few
        microseconds; helpers that sleep are moved when they wake up, and keep their cores until the next call.
        """
        if self._current_core is None:
            return ()
        cores = os.sched_getaffinity(0)
        here = self._current_core()
        others = sorted(cores - {here})
        if not others or here not in cores:
            return ()
        try:
            for number, helper in enumerate(helpers):
                os.sched_setaffinity(helper, others[number % len(others) :: len(helpers)])
            os.sched_setaffinity(0, {here})
        except OSError:  # not allowed here; the next call would not be, either
            self._current_core = None
            return ()
        return cores

    def join(self, cores: Collection[int]) -> None:
        """Lets the calling thread run on `cores` again, as `part` returned them."""
        if cores:
            os.sched_setaffinity(0, cores)


def _current_core() -> Callable[[], int] | None:
    """The C library's way to ask, called with the interpreter's lock held: it takes less than handing the lock over."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        current_core: Callable[[], int] = ctypes.PyDLL(None).sched_getcpu
    except (AttributeError, OSError):
        return None
    return current_core

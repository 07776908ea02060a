"""Threads on virtual time: those that compute share the cores, the others wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

EPSILON_US = 1e-6


class Phase(NamedTuple):
    """A part of a task: it takes `us` of a core, or of nothing (a disk, a GPU)."""

    us: float
    uses_core: bool


class _Task(NamedTuple):
    phases: deque[Phase]
    done: Callable[[], None]


class VirtualThreads:
    """Each thread does its tasks in order. Cores are shared equally, as by a fair scheduler."""

    def __init__(self, thread_count: int, core_count: int) -> None:
        self.now_us = 0.0
        self._cores = core_count
        self._tasks: list[deque[_Task]] = [deque() for _ in range(thread_count)]

    def is_idle(self, thread: int) -> bool:
        """Whether a thread has nothing to do."""
        return not self._tasks[thread]

    def give(self, thread: int, phases: Iterable[Phase], done: Callable[[], None]) -> None:
        """Adds a task of at least one phase. `done` is called when its last phase has ended."""
        self._tasks[thread].append(_Task(deque(phases), done))

    def step(self) -> bool:
        """Moves to the moment when the next phase ends. Returns False if there is none."""
        busy = [tasks for tasks in self._tasks if tasks]
        if not busy:
            return False
        computing = sum(tasks[0].phases[0].uses_core for tasks in busy)
        rate = min(1.0, self._cores / max(1, computing))
        rates = [rate if tasks[0].phases[0].uses_core else 1.0 for tasks in busy]
        passed_us = min(
            tasks[0].phases[0].us / each for tasks, each in zip(busy, rates, strict=True)
        )
        self.now_us += passed_us
        ended = []
        for tasks, each in zip(busy, rates, strict=True):
            phases = tasks[0].phases
            phases[0] = phases[0]._replace(us=phases[0].us - passed_us * each)
            if phases[0].us <= EPSILON_US:
                phases.popleft()
                if not phases:
                    ended.append(tasks.popleft())
        for task in ended:
            task.done()
        return True

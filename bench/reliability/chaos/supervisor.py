"""Supervises the processes of a run: restarts those that died, resumes those that are paused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

RESTART_S = 1.0
"""How long a process that ended by itself stays down."""


@dataclass(slots=True)
class SupervisedProcess:
    """A process and its state. `until_s`: when it is started or resumed.

    `process`: what has `is_running`, `kill`, `pause`, `resume`: a service, a broker or a stand-in.
    """

    process: Any
    start: Callable[[], None]
    is_up: Callable[[], bool]
    state: Literal["up", "paused", "dead", "starting"] = "up"
    until_s: float = 0.0
    hit_s: float = 0.0


@dataclass(slots=True)
class ProcessSupervisor:
    """All processes of a run. Times are seconds of the run. `step` does not wait for a process.

    `exits`: the names of those that ended by themselves: fenced, or failed. `back_after_s`: from
    each fault until the process was up again.
    """

    processes: Mapping[str, SupervisedProcess]
    exits: list[str] = field(default_factory=list)
    back_after_s: dict[str, list[float]] = field(default_factory=dict)

    def is_up(self, name: str) -> bool:
        """Whether the process was up when it was last looked at."""
        return self.processes[name].state == "up"

    def note(
        self, name: str, state: Literal["dead", "paused"], now_s: float, down_s: float
    ) -> None:
        """Notes that the process was killed or paused; it comes back after `down_s`."""
        found = self.processes[name]
        found.state, found.hit_s, found.until_s = state, now_s, now_s + down_s

    def step(self, now_s: float) -> None:
        """Brings back what is due, and notes what is up again and what ended by itself."""
        for name, each in self.processes.items():
            if each.state == "paused" and now_s >= each.until_s:
                each.process.resume()
                each.state = "starting"
            elif each.state == "dead" and now_s >= each.until_s:
                each.start()
                each.state = "starting"
            elif each.state in ("up", "starting") and not each.process.is_running:
                self.exits.append(name)
                each.hit_s = each.hit_s if each.state == "starting" else now_s
                each.state, each.until_s = "dead", now_s + RESTART_S
            elif each.state == "starting" and each.is_up():
                each.state = "up"
                self.back_after_s.setdefault(name, []).append(now_s - each.hit_s)

    def all_up(self) -> bool:
        """Whether every process is up."""
        return all(each.state == "up" for each in self.processes.values())

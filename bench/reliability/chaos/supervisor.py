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


@dataclass(slots=True)
class ProcessSupervisor:
    """All processes of a run. Times are seconds of the run. `step` does not wait for a process.

    `exits`: the names of those that ended by themselves: fenced, or failed.
    """

    processes: Mapping[str, SupervisedProcess]
    exits: list[str] = field(default_factory=list)

    def is_up(self, name: str) -> bool:
        """Whether the process was up when it was last looked at."""
        return self.processes[name].state == "up"

    def kill(self, name: str, until_s: float) -> None:
        """Kills a process; it is started again at `until_s`."""
        found = self.processes[name]
        found.process.kill()
        found.state, found.until_s = "dead", until_s

    def pause(self, name: str, until_s: float) -> None:
        """Pauses a process until `until_s`."""
        found = self.processes[name]
        found.process.pause()
        found.state, found.until_s = "paused", until_s

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
                each.state, each.until_s = "dead", now_s + RESTART_S
            elif each.state == "starting" and each.is_up():
                each.state = "up"

    def all_up(self) -> bool:
        return all(each.state == "up" for each in self.processes.values())

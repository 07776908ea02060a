"""Injects planned faults when they count: with work in flight, and answers since the last fault.

For a kill inside a transaction the victim is paused, the coordinator of its transaction is asked
for the state, and the victim is killed only when the transaction is open. Else it is resumed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import msgspec

from bench.reliability.chaos.network import NetworkFaults
from bench.reliability.chaos.plan import KINDS, Kind, PlannedFault
from bench.reliability.chaos.states import StateFaults
from bench.reliability.chaos.supervisor import ProcessSupervisor
from carpool.testing.transactions import DescribedTransaction

SETTLE_S = 0.01
"""After a pause, the brokers handle what the victim had sent before its transaction is read."""
TRIES_MAX = 20
"""How often a victim is paused in search of an open transaction in one step."""
HORIZON_S = 30.0


class InjectedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that counted.

    `in_flight`: records or requests that the victim had in flight; for a broker or a network,
    unanswered questions. `answers`: read until then. `in_transaction`: the victim's was open.
    """

    at_s: float
    kind: Kind
    victim: str
    in_flight: int
    answers: int
    in_transaction: bool


class RunState(Protocol):
    """What the injector reads of the run, see `LiveRun`."""

    def now_s(self) -> float: ...
    def published(self) -> int: ...
    def answered(self) -> int: ...
    def in_flight(self, member: str) -> int: ...
    def transaction(self, member: str) -> DescribedTransaction | None: ...
    def brokers_are_whole(self) -> bool: ...


@dataclass(slots=True)
class FaultInjector:
    """Injects the faults of a plan. The caller steps the supervisor between two steps."""

    pending: list[PlannedFault]
    supervisor: ProcessSupervisor
    network: NetworkFaults
    states: StateFaults
    run: RunState
    rng: random.Random
    sleep: Callable[[float], None] = time.sleep
    injected: list[InjectedFault] = field(default_factory=list)

    def step(self) -> None:
        """Injects at most one fault: the first that is due and counts now."""
        answers, now_s = self.run.answered(), self.run.now_s()
        if self.run.published() <= answers or (
            self.injected and answers <= self.injected[-1].answers
        ):
            return
        for fault in [fault for fault in self.pending if fault.at_s <= now_s]:
            if self._inject(fault):
                self.pending.remove(fault)
                return

    def _inject(self, fault: PlannedFault) -> bool:
        unanswered = self.run.published() - self.run.answered()
        if fault.sort == "network faults":
            if not self.network.is_whole:
                return False
            found = self.network.inject(fault, self.run.now_s())
            return found is not None and self._note(fault, found, unanswered)
        if fault.sort == "changes of the deployment":
            if not self._is_whole():
                return False
            found = self.states.inject(fault, self.run.now_s())
            return found is not None and self._note(fault, found, unanswered)
        if KINDS[fault.kind].hits == "brokers":
            return self._is_whole() and self._hit(fault, fault.victims[0], unanswered)
        for victim in fault.victims:
            if self.supervisor.is_up(victim) and (in_flight := self.run.in_flight(victim)):
                if KINDS[fault.kind].hits == "members":
                    return self._hit_member(fault, victim, in_flight)
                return self._hit(fault, victim, in_flight)
        return False

    def _is_whole(self) -> bool:
        is_calm = self.network.is_whole and self.states.is_whole
        return is_calm and self.run.brokers_are_whole()

    def _hit(
        self, fault: PlannedFault, victim: str, in_flight: int, in_transaction: bool = False
    ) -> bool:
        process = self.supervisor.processes[victim].process
        if fault.kind.startswith("pause"):
            process.pause()
            self.supervisor.note(victim, "paused", self.run.now_s(), fault.down_s)
        else:
            process.kill()
            self.supervisor.note(victim, "dead", self.run.now_s(), fault.down_s)
        return self._note(fault, victim, in_flight, in_transaction)

    def _hit_member(self, fault: PlannedFault, victim: str, in_flight: int) -> bool:
        process = self.supervisor.processes[victim].process
        needs_open = fault.kind == "kill in a transaction"
        for _ in range(TRIES_MAX if needs_open else 1):
            process.pause()
            self.sleep(SETTLE_S)
            transaction = self.run.transaction(victim)
            is_open = transaction is not None and transaction.is_open
            if is_open or not needs_open:
                return self._hit(fault, victim, in_flight, is_open)
            process.resume()
            self.sleep(self.rng.uniform(0.0, 0.03))
        return False

    def _note(
        self, fault: PlannedFault, victim: str, in_flight: int, in_transaction: bool = False
    ) -> bool:
        self.injected.append(
            InjectedFault(
                at_s=self.run.now_s(),
                kind=fault.kind,
                victim=victim,
                in_flight=in_flight,
                answers=self.run.answered(),
                in_transaction=in_transaction,
            )
        )
        return True


def quiet_after_s(
    injected: Sequence[InjectedFault], answers_s: Sequence[float]
) -> Mapping[Kind, list[float]]:
    """Returns the longest time without an answer after each fault, by kind.

    It is measured until the next fault, for at most 30 s. `answers_s`: when answers were read,
    seconds of the run, in any order.
    """
    found: dict[Kind, list[float]] = {}
    times = sorted(answers_s)
    nexts_s = [fault.at_s for fault in injected[1:]] + [float("inf")]
    for fault, next_s in zip(injected, nexts_s, strict=True):
        end_s = min(next_s, fault.at_s + HORIZON_S)
        points = [fault.at_s, *(at_s for at_s in times if fault.at_s < at_s < end_s), end_s]
        gaps = [later - earlier for earlier, later in pairwise(points)]
        found.setdefault(fault.kind, []).append(max(gaps))
    return found

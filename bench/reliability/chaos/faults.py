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
from typing import Literal, Protocol

import msgspec

from bench.reliability.chaos.network import NetworkFaults
from bench.reliability.chaos.plan import (
    OF_BROKERS,
    OF_LLM,
    OF_NETWORK,
    OF_STATES,
    Kind,
    PlannedFault,
)
from bench.reliability.chaos.states import StateFaults
from bench.reliability.chaos.supervisor import ProcessSupervisor
from carpool.testing.transactions import DescribedTransaction

SETTLE_S = 0.01
"""After a pause, the brokers handle what the victim had sent before its transaction is read."""

TRIES_MAX = 20
"""How often a victim is paused in search of an open transaction in one step."""


class InjectedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that counted.

    `transaction`: the victim's, as its coordinator described it. `in_flight`: records or requests
    that the victim had in flight; for a broker or a network, unanswered questions. `answers`: read
    until then.
    """

    at_s: float
    kind: Kind
    victim: str
    down_s: float
    in_flight: int
    answers: int
    transaction: DescribedTransaction | None = None

    @property
    def is_in_transaction(self) -> bool:
        """Whether it was a kill inside an open transaction."""
        is_kill = self.kind in ("kill", "kill in a transaction")
        return is_kill and self.transaction is not None and self.transaction.is_open


class RunState(Protocol):
    """What the injector reads of the run."""

    def now_s(self) -> float:
        """Returns the seconds since the run began."""

    def published(self) -> int:
        """Returns the number of questions sent so far."""

    def answered(self) -> int:
        """Returns the number of questions with a committed answer so far."""

    def in_flight(self, member: str) -> int:
        """Returns the records, or requests, that it has in flight; 0 when it does not answer."""

    def transaction(self, member: str) -> DescribedTransaction | None:
        """Returns the transaction of a member, as its coordinator describes it."""

    def brokers_are_whole(self) -> bool:
        """Whether every broker is up and has every copy of every partition."""


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
        if not self._made_progress():
            return
        now_s = self.run.now_s()
        for fault in [fault for fault in self.pending if fault.at_s <= now_s]:
            done = self._inject(fault)
            if done is not None:
                self.pending.remove(fault)
                self.injected.append(done)
                return

    def _inject(self, fault: PlannedFault) -> InjectedFault | None:
        if fault.kind in OF_NETWORK:
            return self._begin(fault, self.network) if self.network.is_whole else None
        if fault.kind in OF_STATES:
            return self._begin(fault, self.states) if self._is_whole() else None
        return self._hit_broker(fault) if fault.kind in OF_BROKERS else self._hit_member(fault)

    def _made_progress(self) -> bool:
        answers = self.run.answered()
        has_work = self.run.published() > answers
        return has_work and (not self.injected or answers > self.injected[-1].answers)

    def _is_whole(self) -> bool:
        is_calm = self.network.is_whole and self.states.is_whole
        return is_calm and self.run.brokers_are_whole()

    def _begin(
        self, fault: PlannedFault, place: NetworkFaults | StateFaults
    ) -> InjectedFault | None:
        in_flight = self.run.published() - self.run.answered()
        victim = place.inject(fault, self.run.now_s())
        return None if victim is None else self._noted(fault, victim, in_flight, None)

    def _hit_broker(self, fault: PlannedFault) -> InjectedFault | None:
        if not self._is_whole():
            return None
        victim = fault.victims[0]
        in_flight = self.run.published() - self.run.answered()
        process = self.supervisor.processes[victim].process
        if fault.kind == "kill a broker":
            process.kill()
        else:
            process.pause()
        return self._note(fault, victim, in_flight, None)

    def _hit_member(self, fault: PlannedFault) -> InjectedFault | None:
        for victim in fault.victims:
            if self.supervisor.is_up(victim) and (in_flight := self.run.in_flight(victim)):
                return self._hit(fault, victim, in_flight)
        return None

    def _hit(self, fault: PlannedFault, victim: str, in_flight: int) -> InjectedFault | None:
        process = self.supervisor.processes[victim].process
        if fault.kind in OF_LLM:
            process.kill()
            return self._note(fault, victim, in_flight, None)
        needs_open = fault.kind == "kill in a transaction"
        for _ in range(TRIES_MAX if needs_open else 1):
            process.pause()
            self.sleep(SETTLE_S)
            transaction = self.run.transaction(victim)
            if not needs_open or (transaction is not None and transaction.is_open):
                if fault.kind != "pause":
                    process.kill()
                return self._note(fault, victim, in_flight, transaction)
            process.resume()
            self.sleep(self.rng.uniform(0.0, 0.03))
        return None

    def _note(
        self,
        fault: PlannedFault,
        victim: str,
        in_flight: int,
        transaction: DescribedTransaction | None,
    ) -> InjectedFault:
        is_pause = fault.kind.startswith("pause")
        state: Literal["paused", "dead"] = "paused" if is_pause else "dead"
        self.supervisor.note(victim, state, self.run.now_s(), fault.down_s)
        return self._noted(fault, victim, in_flight, transaction)

    def _noted(
        self,
        fault: PlannedFault,
        victim: str,
        in_flight: int,
        transaction: DescribedTransaction | None,
    ) -> InjectedFault:
        return InjectedFault(
            at_s=self.run.now_s(),
            kind=fault.kind,
            victim=victim,
            down_s=fault.down_s,
            in_flight=in_flight,
            answers=self.run.answered(),
            transaction=transaction,
        )


def quiet_after_s(
    injected: Sequence[InjectedFault], answers_s: Sequence[float], *, horizon_s: float = 30.0
) -> Mapping[Kind, list[float]]:
    """Returns the longest time without an answer after each fault, by kind.

    It is measured until the next fault, for at most `horizon_s`. `answers_s`: when answers were
    read, seconds of the run, in any order.
    """
    found: dict[Kind, list[float]] = {}
    times = sorted(answers_s)
    nexts_s = [fault.at_s for fault in injected[1:]] + [float("inf")]
    for fault, next_s in zip(injected, nexts_s, strict=True):
        end_s = min(next_s, fault.at_s + horizon_s)
        points = [fault.at_s, *(at_s for at_s in times if fault.at_s < at_s < end_s), end_s]
        gaps = [later - earlier for earlier, later in pairwise(points)]
        found.setdefault(fault.kind, []).append(max(gaps))
    return found

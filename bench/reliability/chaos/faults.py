"""Injects planned faults when they count: with work in flight, and answers since the last fault.

For a kill inside a transaction the victim is paused, the brokers are asked for its transaction, and
the victim is killed only when the transaction is open and has records: without any it blocks no
reader, and nobody needs to end it. Else the victim is resumed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from bench.reliability.chaos.live import LiveRun
from bench.reliability.chaos.plan import AT_BASES, CHANGES, KINDS, NETWORK, Kind, PlannedFault

SETTLE_S = 0.01
"""After a pause, the brokers handle what the victim had sent before its transaction is read."""
BASE_S = 0.1
"""A member is killed so long after a save or a swap began, at most."""
TRIES_MAX = 20
"""How often a victim is paused in search of such a transaction in one step."""
HORIZON_S = 30.0


class InjectedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that counted. `answers`: read until then. `in_transaction`: it had records."""

    at_s: float
    kind: Kind
    victim: str
    answers: int
    in_transaction: bool


@dataclass(slots=True)
class FaultInjector:
    """Injects the faults of a plan. The caller steps the supervisor between two steps."""

    pending: list[PlannedFault]
    run: LiveRun
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
            if found := self._inject(fault):
                victim, is_open = found
                self.pending.remove(fault)
                self.injected.append(
                    InjectedFault(
                        at_s=self.run.now_s(),
                        kind=fault.kind,
                        victim=victim,
                        answers=self.run.answered(),
                        in_transaction=is_open,
                    )
                )
                return

    def _inject(self, fault: PlannedFault) -> tuple[str, bool] | None:
        """Returns the victim, and whether it was in a transaction; None: it does not count now."""
        run, hits = self.run, KINDS[fault.kind].hits
        is_calm = run.network.is_whole and run.states.is_whole
        if fault.sort == NETWORK:
            found = run.network.inject(fault, run.now_s()) if run.network.is_whole else None
            return (found, False) if found else None
        if fault.sort == AT_BASES:
            return self._hit_at_base(fault)
        if fault.sort == CHANGES or hits == "brokers":
            if not (is_calm and run.brokers_are_whole()):
                return None
            if hits == "brokers":
                return self._hit(fault, fault.victims[0])
            found = run.states.inject(fault, run.now_s())
            return (found, False) if found else None
        for victim in fault.victims:
            if run.supervisor.is_up(victim) and run.in_flight(victim):
                return (self._hit_member if hits == "members" else self._hit)(fault, victim)
        return None

    def _hit(
        self, fault: PlannedFault, victim: str, in_transaction: bool = False
    ) -> tuple[str, bool]:
        supervisor = self.run.supervisor
        act = supervisor.pause if fault.kind.startswith("pause") else supervisor.kill
        act(victim, self.run.now_s() + fault.down_s)
        return victim, in_transaction

    def _hit_at_base(self, fault: PlannedFault) -> tuple[str, bool] | None:
        """Waits for a moment for a base that is being saved, or was saved just now."""
        run = self.run
        for _ in range(TRIES_MAX):
            victim = run.bases.saver()
            if KINDS[fault.kind].hits == "searchers":
                victim = fault.victims[0] if run.bases.are_swapping() else None
            if victim is not None and run.supervisor.is_up(victim):
                self.sleep(self.rng.uniform(0.0, BASE_S))
                return self._hit(fault, victim)
            self.sleep(SETTLE_S)
        return None

    def _hit_member(self, fault: PlannedFault, victim: str) -> tuple[str, bool] | None:
        process = self.run.supervisor.processes[victim].process
        needs_open = fault.kind == "kill in a transaction"
        for _ in range(TRIES_MAX if needs_open else 1):
            process.pause()
            self.sleep(SETTLE_S)
            is_open = self.run.has_open_transaction(victim, with_records=True)
            if is_open or not needs_open:
                return self._hit(fault, victim, is_open)
            process.resume()
            self.sleep(self.rng.uniform(0.0, 0.03))
        return None


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

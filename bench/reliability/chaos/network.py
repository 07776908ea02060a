"""Faults that pass, and those of the network: begins and ends them at the proxy of each broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from confluent_kafka import KafkaException

from bench.reliability.chaos.plan import PlannedFault
from bench.reliability.fault_proxy import END_TXN, PRODUCE, TXN_OFFSET_COMMIT, FaultProxy
from carpool.errors import CarpoolError

API_KEYS = {"EndTxn": END_TXN, "TxnOffsetCommit": TXN_OFFSET_COMMIT, "Produce": PRODUCE}
REQUEST_WAIT_S = 1.0
"""How long to wait for a request that is to be held, or whose reply is to be dropped."""


@dataclass(slots=True)
class PassingFaults:
    """The faults in progress. Times are seconds of the run. `note`: is told why an end fails."""

    note: Callable[[str], None]
    _said: set[str] = field(default_factory=set, init=False)
    _ends: list[tuple[float, Callable[[], None]]] = field(default_factory=list, init=False)

    @property
    def is_whole(self) -> bool:
        """Whether no fault is in progress."""
        return not self._ends

    def step(self, now_s: float) -> None:
        """Ends what is due. What cannot be ended now is tried again in the next step."""
        for due in [each for each in self._ends if each[0] <= now_s]:
            self._ends.remove(due)
            try:
                due[1]()
            except (KafkaException, CarpoolError, TimeoutError) as error:
                self._ends.append(due)
                why = f"{now_s:.0f} s: a fault cannot be ended yet: {type(error).__name__}: {error}"
                if (text := why.partition(": ")[2]) not in self._said:
                    self._said.add(text)
                    self.note(why)


@dataclass(slots=True)
class NetworkFaults(PassingFaults):
    """The faults of the network in progress."""

    proxies: Mapping[str, FaultProxy]

    def inject(self, fault: PlannedFault, now_s: float) -> str | None:
        """Begins a fault; returns its victim. None: no request came that it could hold or drop."""
        victim, end = fault.victims[0], ExitStack()
        proxy = self.proxies[victim]
        match fault.kind:
            case "slow network":
                victim = "all brokers"
                for each in self.proxies.values():
                    each.delay(fault.delay_s)
                    end.callback(each.delay, 0.0)
            case "cut":
                proxy.cut()
            case "half-open":
                end.enter_context(proxy.half_open())
            case "network down":
                end.enter_context(proxy.down())
            case "late end of a transaction" | "lost reply":
                return self._catch(fault, now_s)
        self._ends.append((now_s + fault.down_s, end.close))
        return victim

    def _catch(self, fault: PlannedFault, now_s: float) -> str | None:
        """Drops a reply, or holds the end of a transaction, which the client sends once more."""
        is_held = fault.kind != "lost reply"
        for victim in fault.victims:
            proxy = self.proxies[victim]
            caught = proxy.hold(END_TXN) if is_held else proxy.drop_reply(API_KEYS[fault.request])
            if caught.wait(REQUEST_WAIT_S):
                if is_held:
                    proxy.cut()
                    self._ends.append((now_s + REQUEST_WAIT_S + fault.down_s, caught.release))
                return victim
            caught.release()
        return None

"""Deficit round robin with weights (Shreedhar and Varghese, SIGCOMM 1995, section 3). Pure."""

from __future__ import annotations

from collections.abc import Callable


class DeficitRoundRobin:
    """Shares capacity between flows that have work.

    On its turn a flow spends `quantum` times its weight; the rest is added to its next turn.
    A flow without work has no turn and saves nothing. With `cost_max` the cost of the
    most expensive item:

    - *Work-conserving*: an item is chosen whenever any flow may go.
    - *Shares*: while two flows have work, their spendings, each divided by its weight, differ by at
      most `quantum` plus `cost_max` divided by each weight.
    - *No starvation*: before a flow goes, each other flow spends at most its quantum plus
      `cost_max`, times the waiting cost divided by the own quantum of the flow, rounded up.

    Not for latency targets: a new flow waits for a whole round. Memory: one number for each flow
    that has work. Time of a turn: O(flows passed over), times the cost of the item divided by the
    smallest quantum.
    """

    def __init__(self, *, quantum: int, weight_of: Callable[[str], int]) -> None:
        """`quantum` is in the unit of costs. `weight_of` gives the weight of a flow, at least 1."""
        if quantum < 1:
            raise ValueError(f"quantum must be at least 1: {quantum}")
        self._quantum = quantum
        self._weight_of = weight_of
        self._deficits: dict[str, int] = {}  # in the order of turns
        self._is_granted = False

    def __len__(self) -> int:
        """Returns the number of flows that have work."""
        return len(self._deficits)

    def join(self, flow: str) -> None:
        """Notes that a flow has work. A new flow goes behind all others."""
        self._deficits.setdefault(flow, 0)

    def leave(self, flow: str) -> None:
        """Notes that a flow has no work."""
        if flow in self._deficits:
            self._is_granted = self._is_granted and flow != next(iter(self._deficits))
            del self._deficits[flow]

    def next(self, cost_of: Callable[[str], int | None]) -> str | None:
        """Returns the flow whose first item goes now, and charges its cost; None: all are blocked.

        `cost_of`: the cost of the first item of a flow. None: the flow is blocked and loses its
        turn.
        """
        if all(cost_of(flow) is None for flow in self._deficits):
            return None
        while True:
            flow = next(iter(self._deficits))
            cost = cost_of(flow)
            if cost is None:
                self._pass_on(flow, 0)
                continue
            if not self._is_granted:
                self._deficits[flow] += self._quantum * self._weight_of(flow)
                self._is_granted = True
            if cost <= self._deficits[flow]:
                self._deficits[flow] -= cost
                return flow
            self._pass_on(flow, self._deficits[flow])

    def check_integrity(self) -> None:
        """Asserts that no deficit is negative."""
        assert all(deficit >= 0 for deficit in self._deficits.values())

    def _pass_on(self, flow: str, kept: int) -> None:
        del self._deficits[flow]
        self._deficits[flow] = kept
        self._is_granted = False

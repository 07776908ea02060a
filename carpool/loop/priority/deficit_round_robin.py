"""Whose turn is it? Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995, section 3), with
weights. Pure.
"""

from __future__ import annotations

from collections.abc import Callable


class DeficitRoundRobin:
    """Flows that have work take turns; on its turn a flow spends `quantum` times its weight, and
    what it could not spend is added to its next turn. A flow without work has no turn and keeps
    nothing.

    What is promised, with `cost_max` the dearest item:

    - *Work-conserving*: somebody may go whenever anybody could.
    - *Shares*: while two flows have work, their spendings, each over its weight, differ by at most
      `quantum` and `cost_max` over each weight.
    - *No starvation*: before a flow that has work goes, each other flow spends at most its quantum
      and `cost_max`, as often as the cost of the waiting item holds the flow's own quantum, rounded
      up.

    Not for latency targets: who comes last waits for a whole round, however urgent. Memory: one
    number a flow that has work. Cost of a turn: O(flows passed over), times the cost of the item
    over the smallest quantum where items are dear.
    """

    def __init__(self, *, quantum: int, weight_of: Callable[[str], int]) -> None:
        """`quantum` is in the unit of costs; `weight_of` gives a flow's weight, a whole number
        above 0.
        """
        if quantum < 1:
            raise ValueError(f"a turn must be worth something: {quantum}")
        self._quantum = quantum
        self._weight_of = weight_of
        self._deficits: dict[str, int] = {}  # in the order of turns: the first is on turn
        self._is_granted = False

    def __len__(self) -> int:
        """How many flows have work."""
        return len(self._deficits)

    def join(self, flow: str) -> None:
        """Says that a flow has work; one that had none before goes behind all others."""
        self._deficits.setdefault(flow, 0)

    def leave(self, flow: str) -> None:
        """Says that a flow has no work any more."""
        if flow in self._deficits:
            self._is_granted = self._is_granted and flow != next(iter(self._deficits))
            del self._deficits[flow]

    def next(self, cost_of: Callable[[str], int | None]) -> str | None:
        """Returns the flow whose first item goes now, and charges it; None when none may.

        `cost_of` gives the cost of a flow's first item, or None where it is held back: such a flow
        loses its turn to those that are not.
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
        """Asserts that nobody is in debt."""
        assert all(deficit >= 0 for deficit in self._deficits.values())

    def _pass_on(self, flow: str, kept: int) -> None:
        del self._deficits[flow]
        self._deficits[flow] = kept
        self._is_granted = False

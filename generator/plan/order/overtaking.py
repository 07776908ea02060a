"""An order that lets no prompt be overtaken without end. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from generator.plan.order.protocol import NextPrompt, Order


class BoundedOvertaking:
    """Asks another order, but first takes prompts that were overtaken `overtaken_max` times.

    A prompt is overtaken when one that came later is chosen before it. (The starvation window of
    RAGCache, section 5.2.) Cost: O(prompts), beside the other order's.
    """

    def __init__(self, order: Order, *, overtaken_max: int | None) -> None:
        """`overtaken_max` None: no bound."""
        self._order = order
        self._overtaken_max = overtaken_max
        self._overtaken: dict[int, int] = {}

    def choose(self, ids: Sequence[int]) -> NextPrompt:
        """Returns the next of `ids`, which are in the order of arrival and at least one."""
        if self._overtaken_max is None:
            return self._order.choose(ids)
        due = (id for id in ids if self._overtaken.get(id, 0) >= self._overtaken_max)
        first_due = next(due, None)
        # Also a prompt that is due is sent in the form of which most is cached.
        chosen = self._order.choose(ids if first_due is None else (first_due,))
        for id in ids:
            if id == chosen.id:
                break
            self._overtaken[id] = self._overtaken.get(id, 0) + 1
        return chosen

    def forget(self, id: int) -> None:
        """Notes that a prompt waits no more."""
        self._overtaken.pop(id, None)

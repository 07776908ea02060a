"""Which slices are scored next: those that were read, in the order in which room was reserved.

A slice whose read is late is overtaken.
"""

from __future__ import annotations

from collections.abc import Collection

from searcher.plan.slices import Room, Slice


class HeadOfLine:
    """Keeps scoring in the order of the reservations, so that reads do not depend on disk timing.

    When other slices have waited `overtake_us` for the first one, they are scored before it.
    """

    def __init__(self, overtake_us: int) -> None:
        self._overtake_us = overtake_us
        self._late: tuple[Slice, int] | None = None  # the first, and since when others wait for it

    def arrived(self, expected: Collection[Slice], now_us: int) -> tuple[Slice, ...]:
        """Returns those of `expected`, in their order, that are resident and may be scored."""
        head = next(iter(expected), None)
        if head is None or head.room is Room.RESIDENT:
            self.forget()
            in_order = []
            for one in expected:
                if one.room is not Room.RESIDENT:
                    break
                in_order.append(one)
            return tuple(in_order)
        others = tuple(one for one in expected if one.room is Room.RESIDENT)
        if not others:
            self._late = None
        elif self._late is None or self._late[0] is not head:
            self._late = (head, now_us)
        wake_us = self.wake_us()
        return others if wake_us is not None and now_us >= wake_us else ()

    def forget(self) -> None:
        """Nothing is expected."""
        self._late = None

    def wake_us(self) -> int | None:
        """Returns when the slices that wait may overtake the first; None when none waits."""
        return None if self._late is None else self._late[1] + self._overtake_us

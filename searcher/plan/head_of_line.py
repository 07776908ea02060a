"""Whose turn is it to be scored? What was read, in the order in which it was reserved; what is late
is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from schemas.record import ClusterId


class HeadOfLine:
    """Keeps scoring in the order of the reservations, however reads end, so that no two runs read
    other bytes.

    The first of them may be late: once others have waited `overtake_us` for it, they go first.
    """

    def __init__(self, overtake_us: int) -> None:
        self._overtake_us = overtake_us
        self._late: tuple[ClusterId, int] | None = (
            None  # the first, and since when others wait for it
        )

    def arrived(
        self, coming: Collection[ClusterId], is_resident: Callable[[ClusterId], bool], now_us: int
    ) -> tuple[ClusterId, ...]:
        """Returns those of `coming`, in the order of their reservations, that are resident and
        whose turn it is.
        """
        head = next(iter(coming), None)
        if head is None or is_resident(head):
            self.forget()
            in_turn = []
            for cluster in coming:
                if not is_resident(cluster):
                    break
                in_turn.append(cluster)
            return tuple(in_turn)
        others = tuple(cluster for cluster in coming if is_resident(cluster))
        if not others:
            self._late = None
        elif self._late is None or self._late[0] != head:
            self._late = (head, now_us)
        wake_us = self.wake_us()
        return others if wake_us is not None and now_us >= wake_us else ()

    def forget(self) -> None:
        """Nothing is coming, or nothing is late."""
        self._late = None

    def wake_us(self) -> int | None:
        """Returns when those that wait for the first may go before it, None when none waits."""
        return None if self._late is None else self._late[1] + self._overtake_us

"""Which slices have room in the budget, and which one is evicted for another.

A slice that is pinned or being read is never evicted; among the rest the eviction policy chooses.
The policy learns of a slice when memory for it is reserved, not when its bytes arrive. The policy
may choose a slice that is not scored yet: that slice is scored next and evicted then. So the
choices depend neither on the speed of the disk nor on the progress of scoring.
"""

from __future__ import annotations

from collections.abc import Callable

from searcher.plan.farthest_next_use import FarthestNextUse
from searcher.plan.slices import Room, Slice, SliceTable, Work


class Residency:
    """Reserves and frees room of `budget_bytes`."""

    def __init__(self, budget_bytes: int, table: SliceTable, policy: FarthestNextUse) -> None:
        assert table.largest_bytes <= budget_bytes, "a slice is larger than the whole budget"
        self._budget_bytes = budget_bytes
        self._table = table
        self._policy = policy

    @property
    def room_bytes(self) -> int:
        """Bytes that could be reserved now if all evictable slices were evicted."""
        return self._budget_bytes - self._table.fixed_bytes - self._table.stuck_bytes

    def reserve(
        self,
        one: Slice,
        reader: int | None,
        may_evict: Callable[[Slice], bool] = lambda victim: True,
    ) -> tuple[Slice, ...] | None:
        """Reserves room for reading `one` for the query `reader`; None: ahead, for no query yet.

        Returns what was evicted, in order; None, and nothing changes, if there is no room, or
        `may_evict` forbids it. A read ahead leaves room for the largest slice, so that no query
        waits for memory.
        """
        spare_bytes = self._table.largest_bytes if reader is None else 0
        if one.size_bytes + spare_bytes > self.room_bytes:
            return None
        victims: list[Slice] = []
        free_bytes = self._budget_bytes - self._table.used_bytes
        kept = set(self._table.fixed())
        while free_bytes < one.size_bytes:
            number = self._policy.victim(kept)
            assert number is not None, "there should be room, and the policy has nothing to evict"
            if not may_evict(self._table[number]):
                return None
            kept.add(number)
            victims.append(self._table[number])
            free_bytes += victims[-1].size_bytes
        for victim in victims:
            self._evict(victim)
        self._table.set_room(one, Room.RESERVED)
        self._table.set_ahead(one, reader is None)
        one.reader = reader
        self._policy.insert(one.id)
        assert self._table.used_bytes <= self._budget_bytes, "the budget is overdrawn"
        return tuple(victims)

    def fail(self, one: Slice, *, is_stuck: bool) -> None:
        """The read of `one` was given up; if `is_stuck`, `free` returns its memory."""
        self._table.set_ahead(one, False)
        if one.work is Work.EXPECTED:
            self._table.set_work(one, Work.NONE)
        self._table.set_room(one, Room.ABSENT)
        self._policy.remove(one.id)
        if is_stuck:
            self._table.add_stuck(one, 1)

    def free(self, one: Slice) -> None:
        """The memory of a stuck read is free."""
        assert one.stuck_reads, f"{one} has no stuck read"
        self._table.add_stuck(one, -1)

    def check_integrity(self) -> None:
        """Raises `AssertionError` where table, budget and policy disagree."""
        table = self._table
        table.check_integrity()
        with_room = {one.id for room in Room if room for one in table.in_room(room)}
        assert self._policy.residents() == with_room
        assert table.fixed_bytes + table.stuck_bytes <= table.used_bytes <= self._budget_bytes
        assert table.occupied_bytes <= self._budget_bytes

    def _evict(self, victim: Slice) -> None:
        self._policy.remove(victim.id)
        self._table.set_room(victim, Room.ABSENT)
        self._table.set_ahead(victim, False)
        if victim.work is not Work.NONE:
            self._table.set_leaving(victim, True)

"""The table of slices: one record for each slice, with its state, and sums over the states.

A slice is a part of a cluster that is read, kept and scored as one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NewType

SliceId = NewType("SliceId", int)


class Room(IntEnum):
    """The state of a slice in the budget."""

    ABSENT = 0
    RESERVED = 1  # room is reserved, the read is not issued yet
    READING = 2
    RESIDENT = 3


class Work(IntEnum):
    """The work that remains for the bytes of a slice."""

    NONE = 0
    READY = 1  # was in memory before a query wanted it
    EXPECTED = 2  # is read for a query, or was, and is not scored yet
    SCORING = 3
    SCORING_READ = 4  # is being scored, and was read for a query


BEING_READ = frozenset({Room.RESERVED, Room.READING})
IN_SCORING = frozenset({Work.SCORING, Work.SCORING_READ})
PINNED = frozenset({Work.EXPECTED, Work.SCORING_READ})
"""A slice that was read for a query stays in memory until it is scored."""

_ROOM_STEPS = {
    Room.ABSENT: {Room.RESERVED},
    Room.RESERVED: {Room.READING, Room.ABSENT},
    Room.READING: {Room.RESIDENT, Room.ABSENT},
    Room.RESIDENT: {Room.ABSENT},
}
_WORK_STEPS = {
    Work.NONE: {Work.READY, Work.EXPECTED},
    Work.READY: {Work.SCORING, Work.NONE},
    Work.EXPECTED: {Work.SCORING_READ, Work.NONE},
    Work.SCORING: {Work.READY, Work.NONE},
    Work.SCORING_READ: {Work.READY, Work.NONE},
}


@dataclass(slots=True, eq=False)
class Slice:
    """One record. Only `SliceTable` changes `room`, `work`, `is_ahead` and `is_leaving`."""

    id: SliceId
    size_bytes: int
    room: Room = Room.ABSENT
    work: Work = Work.NONE
    wanted_by: dict[int, None] = field(default_factory=dict)  # queries, in the order of joining
    reader: int | None = None  # the query for which room was reserved
    is_ahead: bool = False  # read ahead; no query has wanted it since
    is_leaving: bool = False  # evicted in the accounting; freed in memory when it is scored
    stuck_reads: int = 0  # reads given up whose memory the kernel has not returned

    @property
    def is_being_read(self) -> bool:
        """Whether room is reserved for bytes that have not arrived."""
        return self.room in BEING_READ

    @property
    def is_fixed(self) -> bool:
        """Whether it must not be evicted: pinned, or being read."""
        return self.work in PINNED or self.room in BEING_READ

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the fields of this record contradict each other."""
        name = f"slice {self.id}: {self.room.name}, {self.work.name}"
        if self.work in (Work.READY, Work.SCORING):
            assert self.room is Room.RESIDENT or self.is_leaving, name
        if self.work is Work.SCORING_READ:
            assert self.room is Room.RESIDENT, name
        if self.work is Work.EXPECTED:
            assert self.room in (Room.RESERVED, Room.READING, Room.RESIDENT), name
        if self.work in (Work.READY, Work.EXPECTED):
            assert self.wanted_by, f"{name}, and no query wants it"
        if self.is_leaving:
            assert self.work in (Work.READY, Work.SCORING), f"{name}, leaving"
            assert self.room in (Room.ABSENT, Room.RESERVED), f"{name}, leaving"
        if self.is_ahead:
            assert self.room is not Room.ABSENT and self.work not in PINNED, f"{name}, ahead"
        assert self.stuck_reads >= 0, name


class SliceTable:
    """All slices. Slices in one state are kept in the order in which they entered it."""

    def __init__(self, size_bytes: Mapping[SliceId, int]) -> None:
        self._slices = {number: Slice(number, size) for number, size in size_bytes.items()}
        self._by_room: list[dict[Slice, None]] = [{} for _ in Room]
        self._by_work: list[dict[Slice, None]] = [{} for _ in Work]
        self._room_bytes = [0 for _ in Room]
        self._work_bytes = [0 for _ in Work]
        self._leaving: dict[Slice, None] = {}
        self._fixed: set[SliceId] = set()
        self.largest_bytes = max(size_bytes.values(), default=0)
        self.ahead_bytes = 0
        self.leaving_bytes = 0
        self.fixed_bytes = 0
        self.stuck_bytes = 0

    def __getitem__(self, number: SliceId) -> Slice:
        """Returns the record of a slice."""
        return self._slices[number]

    def __contains__(self, number: SliceId) -> bool:
        """Whether the slice exists."""
        return number in self._slices

    def in_room(self, room: Room) -> Collection[Slice]:
        """Returns the slices in `room`, not `ABSENT`, in the order of entry: a view."""
        return self._by_room[room].keys()

    def in_work(self, work: Work) -> Collection[Slice]:
        """Returns the slices in `work`, not `NONE`, in the order of entry: a view."""
        return self._by_work[work].keys()

    def leaving(self) -> Collection[Slice]:
        """Returns the slices that leave when they are scored, in the order of eviction: a view."""
        return self._leaving.keys()

    def fixed(self) -> Set[SliceId]:
        """Returns the slices that must not be evicted: a view."""
        return self._fixed

    @property
    def used_bytes(self) -> int:
        """Bytes of the budget in use: resident, reserved, being read, or stuck."""
        return sum(self._room_bytes) + self.stuck_bytes

    @property
    def reading_bytes(self) -> int:
        """Bytes reserved or being read, stuck reads included."""
        return sum(self._room_bytes[room] for room in BEING_READ) + self.stuck_bytes

    @property
    def unscored_bytes(self) -> int:
        """Bytes read, or being read, for queries, and not scored yet."""
        return self._work_bytes[Work.EXPECTED] + self._work_bytes[Work.SCORING_READ]

    @property
    def occupied_bytes(self) -> int:
        """Bytes that memory really has in use: leaving slices count, unissued reads do not."""
        return self.used_bytes + self.leaving_bytes - self._room_bytes[Room.RESERVED]

    def set_room(self, one: Slice, room: Room) -> None:
        """Moves a slice to `room`."""
        assert room in _ROOM_STEPS[one.room], f"{one} cannot become {room.name}"
        if one.room is not Room.ABSENT:
            del self._by_room[one.room][one]
            self._room_bytes[one.room] -= one.size_bytes
        if room is not Room.ABSENT:
            self._by_room[room][one] = None
            self._room_bytes[room] += one.size_bytes
        one.room = room
        self._fix(one)

    def set_work(self, one: Slice, work: Work) -> None:
        """Moves a slice to `work`."""
        assert work in _WORK_STEPS[one.work], f"{one} cannot become {work.name}"
        if one.work is not Work.NONE:
            del self._by_work[one.work][one]
            self._work_bytes[one.work] -= one.size_bytes
        if work is not Work.NONE:
            self._by_work[work][one] = None
            self._work_bytes[work] += one.size_bytes
        one.work = work
        self._fix(one)

    def set_ahead(self, one: Slice, is_ahead: bool) -> None:
        """Says whether a slice was read ahead and no query has wanted it since."""
        if one.is_ahead != is_ahead:
            one.is_ahead = is_ahead
            self.ahead_bytes += one.size_bytes if is_ahead else -one.size_bytes

    def set_leaving(self, one: Slice, is_leaving: bool) -> None:
        """Says whether a slice leaves when it is scored."""
        assert one.is_leaving != is_leaving, f"{one} is so already"
        one.is_leaving = is_leaving
        if is_leaving:
            self._leaving[one] = None
            self.leaving_bytes += one.size_bytes
        else:
            del self._leaving[one]
            self.leaving_bytes -= one.size_bytes

    def add_stuck(self, one: Slice, count: int) -> None:
        """Adds `count` (1 or -1) to the stuck reads of a slice."""
        one.stuck_reads += count
        self.stuck_bytes += count * one.size_bytes

    def check_integrity(self) -> None:
        """Raises `AssertionError` where a record contradicts itself, or an index or sum is off."""
        for one in self._slices.values():
            one.check_integrity()
            for room in Room:
                assert (one in self._by_room[room]) == (one.room is room is not Room.ABSENT)
            for work in Work:
                assert (one in self._by_work[work]) == (one.work is work is not Work.NONE)
            assert (one in self._leaving) == one.is_leaving
            assert (one.id in self._fixed) == one.is_fixed
        for sums, index in ((self._room_bytes, self._by_room), (self._work_bytes, self._by_work)):
            assert sums == [sum(one.size_bytes for one in slices) for slices in index]
        every = self._slices.values()
        assert self.ahead_bytes == sum(one.size_bytes for one in every if one.is_ahead)
        assert self.leaving_bytes == sum(one.size_bytes for one in every if one.is_leaving)
        assert self.fixed_bytes == sum(one.size_bytes for one in every if one.is_fixed)
        assert self.stuck_bytes == sum(one.size_bytes * one.stuck_reads for one in every)

    def _fix(self, one: Slice) -> None:
        is_fixed = one.is_fixed
        if is_fixed and one.id not in self._fixed:
            self._fixed.add(one.id)
            self.fixed_bytes += one.size_bytes
        elif not is_fixed and one.id in self._fixed:
            self._fixed.remove(one.id)
            self.fixed_bytes -= one.size_bytes

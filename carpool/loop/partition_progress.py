"""Computes the offset to commit of a partition from completions in any order. Pure.

The *low watermark* is the first offset that still owes a part. Completed parts above it are listed
in the commit metadata, so that a restart repeats none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import decode_metadata, encode_metadata


@dataclass(slots=True)
class _RecordParts:
    """The `total` parts that one record owes, of which `done` are complete."""

    total: int
    done: set[int]


class PartitionProgress:
    """The progress of one assigned partition. Not thread-safe."""

    def __init__(self, offset: int | None, metadata: str = "") -> None:
        """Begins at a committed position. Unreadable metadata counts as none: work is repeated."""
        # In offset order: records are accepted in the order of the log.
        self._owed: dict[int, _RecordParts] = {}
        self._next_offset = offset
        self._restored_whole, self._restored_parts = decode_metadata(offset or 0, metadata)

    def take(self, offset: int, parts: int) -> frozenset[int]:
        """Adds the record at `offset`; returns the parts that an earlier process completed."""
        if self._next_offset is not None and offset < self._next_offset:
            raise ValueError(f"offset {offset} was taken before; the next is {self._next_offset}")
        self._next_offset = offset + 1
        done = {part for part in self._restored_parts.pop(offset, ()) if part < parts}
        if offset in self._restored_whole:
            self._restored_whole.discard(offset)
            done = set(range(parts))
        self._owed[offset] = _RecordParts(parts, done)
        self._advance()
        return frozenset(done)

    def complete(self, offset: int, part: int) -> bool:
        """Marks a part as complete; False if it was complete before or is not owed."""
        owed = self._owed.get(offset)
        if owed is None or part in owed.done or not 0 <= part < owed.total:
            return False
        owed.done.add(part)
        self._advance()
        return True

    def _advance(self) -> None:
        """Forgets the completed records at the front, so that the low watermark moves."""
        while self._owed:
            offset = next(iter(self._owed))
            if len(self._owed[offset].done) < self._owed[offset].total:
                return
            del self._owed[offset]

    @property
    def in_flight(self) -> int:
        """Number of accepted records from the low watermark on."""
        return len(self._owed)

    @property
    def low_watermark(self) -> int | None:
        """The first offset that owes a part; None before the first record and commit."""
        return next(iter(self._owed), self._next_offset)

    def position_with(self, completions: Mapping[int, Collection[int]]) -> Position:
        """Returns the position to commit once `completions`, parts by offset, are complete too.

        Changes nothing.
        """
        done = {
            offset: owed.done
            | {part for part in completions.get(offset, ()) if 0 <= part < owed.total}
            for offset, owed in self._owed.items()
        }
        owing = (offset for offset, owed in self._owed.items() if len(done[offset]) < owed.total)
        low = next(owing, self._next_offset)
        if low is None:
            return Position(None, "")
        above = {offset: parts for offset, parts in done.items() if offset >= low}
        whole = {
            offset for offset, parts in above.items() if len(parts) == self._owed[offset].total
        }
        parts = {offset: parts for offset, parts in above.items() if parts and offset not in whole}
        return Position(
            low, encode_metadata(low, whole | self._restored_whole, parts | self._restored_parts)
        )

"""How far a topic partition is done: completions in any order in, an offset and its metadata to
commit out.

A pure state machine. The *low watermark* is the first offset that still owes a part. What is
completed above it travels in the commit metadata, so that a restart repeats none of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import decode_metadata, encode_metadata


@dataclass(slots=True)
class _Owed:
    """What one record still owes; `total` parts, of which `done` are complete."""

    total: int
    done: set[int] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        return len(self.done) >= self.total


class PartitionProgress:
    """The progress of one assigned topic partition, from the offset and metadata of its last
    commit.
    """

    def __init__(self, offset: int | None, metadata: str = "") -> None:
        """Begins at a committed position. Metadata that cannot be read counts as none: work is
        repeated, not lost.
        """
        self._owed: dict[
            int, _Owed
        ] = {}  # in offset order: records are taken in the order of the log
        self._next_offset = offset
        whole, parts = decode_metadata(offset or 0, metadata)
        self._restored_whole = whole
        self._restored_parts = parts

    def already_done(self, offset: int) -> tuple[bool, frozenset[int]]:
        """Returns whether an earlier life completed the whole record at `offset`, else which of its
        parts.
        """
        return offset in self._restored_whole, frozenset(self._restored_parts.get(offset, ()))

    def take(self, offset: int, parts: int) -> None:
        """Notes that the record at `offset` was taken in and owes `parts`, less what an earlier
        life completed.
        """
        if self._next_offset is not None and offset < self._next_offset:
            raise ValueError(f"offset {offset} was taken before; the next is {self._next_offset}")
        self._next_offset = offset + 1
        if offset in self._restored_whole:
            self._restored_whole.discard(offset)
            owed = _Owed(total=parts, done=set(range(parts)))
        else:
            owed = _Owed(
                total=parts,
                done={part for part in self._restored_parts.pop(offset, ()) if part < parts},
            )
        self._owed[offset] = owed
        self._advance()

    def complete(self, offset: int, part: int) -> bool:
        """Notes a completed part; False if it was complete before or is not owed."""
        owed = self._owed.get(offset)
        if owed is None or part in owed.done or not 0 <= part < owed.total:
            return False
        owed.done.add(part)
        self._advance()
        return True

    def _advance(self) -> None:
        """Forgets the completed records at the front: the low watermark moves past them."""
        while self._owed:
            offset = next(iter(self._owed))
            if not self._owed[offset].complete:
                return
            del self._owed[offset]

    @property
    def in_flight(self) -> int:
        """Records taken in that still owe a part, or stand behind one that does."""
        return len(self._owed)

    @property
    def low_watermark(self) -> int | None:
        """The first offset that still owes a part; None while nothing was ever taken or
        committed.
        """
        return next(iter(self._owed), self._next_offset)

    def metadata(self) -> str:
        """Returns what is completed above the low watermark, those restored and not yet read again
        included.
        """
        return self.position_with({}).metadata

    def position_with(self, completions: Mapping[int, Collection[int]]) -> Position:
        """Returns what to commit once these parts are complete too, by offset of their records.
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

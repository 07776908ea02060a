"""Computes the offset to commit of a partition from completions in any order. Pure.

The *low watermark* is the first offset that still owes a part. What is complete above it is listed
in the commit metadata, so that a restart repeats none of it. Complete records are kept as runs of
offsets, so memory and time do not grow with the records that complete after a slow one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping

from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import (
    Completed,
    Deaths,
    Head,
    decode_metadata,
    encode_metadata,
    head_of,
    with_head,
)
from carpool.kafka.fencing import ALONE_DEATHS, after_life, after_progress


class PartitionProgress:
    """The progress of one assigned partition. Not thread-safe."""

    def __init__(self, offset: int | None, metadata: str = "", owner: str | None = None) -> None:
        """Begins at a committed position. Raises `DeploymentError` for unreadable metadata.

        `owner`: the instance id of this member, which its positions name (None: no one). The next
        owner fences it, or counts its death (ADR 0027).
        """
        # How many parts a record has that owes one, in offset order: records are accepted in the
        # order of the log. The first entry of a plain dict is slow to find after many entries
        # before it were deleted.
        self._owed: OrderedDict[int, int] = OrderedDict()
        self._next_offset = offset
        # Complete from the low watermark on. Parts: of records in `_owed`, or not read again yet.
        self._whole, self._parts = decode_metadata(offset or 0, metadata)
        _, self._deaths, self._topic_id = head_of(metadata)
        self._deaths_at = offset or 0
        self._owner = owner

    def take(self, offset: int, parts: int) -> frozenset[int]:
        """Adds the record at `offset`; returns the parts that an earlier process completed."""
        if self._next_offset is not None:
            if offset < self._next_offset:
                raise ValueError(
                    f"offset {offset} was taken before; the next is {self._next_offset}"
                )
            if offset > self._next_offset and self._owed:
                # No record is there: transaction markers, or records that were removed.
                self._whole.add(self._next_offset, offset - 1)
        if not self._owed and self._next_offset == self._deaths_at:
            self._deaths_at = offset  # nothing is at the committed offset
        self._next_offset = offset + 1
        done = {part for part in self._parts.pop(offset, ()) if part < parts}
        if offset in self._whole or len(done) == parts:
            self._finish(offset)
            return frozenset(range(parts))
        self._owed[offset] = parts
        if done:
            self._parts[offset] = done
        return frozenset(done)

    def complete(self, offset: int, part: int) -> bool:
        """Marks a part as complete; False if it was complete before or is not owed."""
        total = self._owed.get(offset, 0)
        if part in self._parts.get(offset, ()) or not 0 <= part < total:
            return False
        self._parts.setdefault(offset, set()).add(part)
        if len(self._parts[offset]) == total:
            del self._owed[offset], self._parts[offset]
            self._finish(offset)
        return True

    def _finish(self, offset: int) -> None:
        """Notes a complete record; forgets what the low watermark has passed."""
        self._whole.add(offset, offset)
        low = self.low_watermark
        assert low is not None, "a record was taken"
        self._whole.discard_before(low)

    @property
    def in_flight(self) -> int:
        """Number of accepted records that owe a part."""
        return len(self._owed)

    @property
    def low_watermark(self) -> int | None:
        """The first offset that owes a part; None before the first record and commit."""
        return next(iter(self._owed), self._next_offset)

    @property
    def ahead(self) -> int:
        """Number of offsets from the low watermark to the next record."""
        return 0 if self._next_offset is None else self._next_offset - (self.low_watermark or 0)

    def deaths_of(self, offset: int) -> Deaths | None:
        """Returns the deaths with this record in hand if it must be tried alone."""
        deaths = after_progress(self._deaths, offset - self._deaths_at)
        return deaths if deaths is not None and deaths.times >= ALONE_DEATHS else None

    def mark_alone(self, offset: int) -> None:
        """Notes that the record at the low watermark, a suspect, is in hand alone."""
        if (deaths := self.deaths_of(offset)) is not None:
            self._deaths, self._deaths_at = deaths._replace(is_alone=True), offset

    def give_up(self) -> None:
        """Notes that this process, alive, has the partition in hand no more."""
        self._deaths, self._owner = after_life(self._deaths), None

    def position_with(self, completions: Mapping[int, Collection[int]]) -> Position:
        """Returns the position to commit once `completions`, parts by offset, are complete too.

        Changes nothing. Time depends on the completions and runs, not on the records in flight.
        """
        parts = self._parts.copy()
        whole = self._whole.copy()
        finished = set()
        for offset, also in completions.items():
            total = self._owed.get(offset, 0)
            done = parts.pop(offset, set()) | {part for part in also if 0 <= part < total}
            if 0 < total == len(done):
                finished.add(offset)
                whole.add(offset, offset)
            elif done:
                parts[offset] = done
        owing = (offset for offset in self._owed if offset not in finished)
        low = next(owing, self._next_offset)
        if low is None:
            return Position(None, "")
        whole.discard_before(low)
        metadata = encode_metadata(low, Completed(whole, parts))
        deaths = after_progress(self._deaths, low - self._deaths_at)
        return Position(low, with_head(metadata, Head(self._owner, deaths, self._topic_id)))

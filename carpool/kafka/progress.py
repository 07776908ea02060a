"""How far a topic partition is done: completions in any order in, an offset and its metadata to commit out.

A pure state machine. The *low watermark* is the first offset that still owes a part. What is completed above it travels
in the commit metadata, so that a restart repeats none of it.

Metadata, version 1: `1;` and comma-separated runs. `a+n`: n whole records, the first `a` after the low watermark.
`a:p-q.r`: of the record at `a`, parts p to q and part r. Numbers are decimal. Version 2: `2;SLOT;` and the runs, where SLOT
names who committed (ADR 0007).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from carpool.kafka.clients import Position

METADATA_VERSION = "1;"
WITH_SLOT = re.compile(r"2;([A-Za-z0-9._-]{1,64});")
RUN_MAX = 1_000_000
"""The longest run that is believed: more were never in flight, so a longer one is damage."""


@dataclass(slots=True)
class _Owed:
    """What one record still owes; `total` parts, of which `done` are complete."""

    total: int
    done: set[int] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        return len(self.done) >= self.total


class PartitionProgress:
    """The progress of one assigned topic partition, from the offset and metadata of its last commit."""

    def __init__(self, offset: int | None, metadata: str = "") -> None:
        """Begins at a committed position. Metadata that cannot be read counts as none: work is repeated, not lost."""
        self._owed: dict[int, _Owed] = {}  # in offset order: records are taken in the order of the log
        self._next_offset = offset
        whole, parts = decode_metadata(offset or 0, metadata)
        self._restored_whole = whole
        self._restored_parts = parts

    def already_done(self, offset: int) -> tuple[bool, frozenset[int]]:
        """Returns whether an earlier life completed the whole record at `offset`, else which of its parts."""
        return offset in self._restored_whole, frozenset(self._restored_parts.get(offset, ()))

    def take(self, offset: int, parts: int) -> None:
        """Notes that the record at `offset` was taken in and owes `parts`, less what an earlier life completed."""
        if self._next_offset is not None and offset < self._next_offset:
            raise ValueError(f"offset {offset} was taken before; the next is {self._next_offset}")
        self._next_offset = offset + 1
        if offset in self._restored_whole:
            self._restored_whole.discard(offset)
            owed = _Owed(total=parts, done=set(range(parts)))
        else:
            owed = _Owed(total=parts, done={part for part in self._restored_parts.pop(offset, ()) if part < parts})
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
        """The first offset that still owes a part; None while nothing was ever taken or committed."""
        return next(iter(self._owed), self._next_offset)

    def metadata(self) -> str:
        """Returns what is completed above the low watermark, those restored and not yet read again included."""
        return self.position_with({}).metadata

    def position_with(self, completions: Mapping[int, Collection[int]]) -> Position:
        """Returns what to commit once these parts are complete too, by offset of their records. Changes nothing."""
        done = {
            offset: owed.done | {part for part in completions.get(offset, ()) if 0 <= part < owed.total}
            for offset, owed in self._owed.items()
        }
        owing = (offset for offset, owed in self._owed.items() if len(done[offset]) < owed.total)
        low = next(owing, self._next_offset)
        if low is None:
            return Position(None, "")
        above = {offset: parts for offset, parts in done.items() if offset >= low}
        whole = {offset for offset, parts in above.items() if len(parts) == self._owed[offset].total}
        parts = {offset: parts for offset, parts in above.items() if parts and offset not in whole}
        return Position(low, encode_metadata(low, whole | self._restored_whole, parts | self._restored_parts))


def with_slot(metadata: str, slot: str) -> str:
    """Returns the metadata with the name of who commits it, in place of any that is there."""
    return f"2;{slot};{_runs_of(metadata) or ''}"


def slot_of(metadata: str) -> str | None:
    """Returns who committed this; None where it does not say."""
    found = WITH_SLOT.match(metadata)
    return found[1] if found else None


def _runs_of(metadata: str) -> str | None:
    """Returns the runs; None for metadata that is empty or foreign."""
    if metadata.startswith(METADATA_VERSION):
        return metadata[len(METADATA_VERSION) :]
    found = WITH_SLOT.match(metadata)
    return metadata[found.end() :] if found else None


def encode_metadata(low: int, whole: Iterable[int], parts: Mapping[int, Collection[int]]) -> str:
    """Returns the metadata for these completed records and parts; empty when there are none."""
    entries = [(start - low, f"{start - low}+{count}") for start, count in _runs(whole)]
    for offset, done in parts.items():
        runs = ".".join(str(first) if count == 1 else f"{first}-{first + count - 1}" for first, count in _runs(done))
        entries.append((offset - low, f"{offset - low}:{runs}"))
    return METADATA_VERSION + ",".join(text for _, text in sorted(entries)) if entries else ""


def decode_metadata(low: int, metadata: str) -> tuple[set[int], dict[int, set[int]]]:
    """Returns (offsets of whole records, parts by offset); nothing for metadata that is empty, foreign or torn."""
    whole: set[int] = set()
    parts: dict[int, set[int]] = {}
    runs_text = _runs_of(metadata)
    if runs_text is None:
        return whole, parts
    try:
        for entry in filter(None, runs_text.split(",")):
            if "+" in entry:
                start, count = map(int, entry.split("+"))
                whole.update(_run(low + start, low + start + count - 1))
            else:
                start_text, runs = entry.split(":")
                done = parts.setdefault(low + int(start_text), set())
                for run in runs.split("."):
                    first, _, last = run.partition("-")
                    done.update(_run(int(first), int(last or first)))
    except ValueError:
        return set(), {}
    return whole, parts


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Returns (first, count) of each run of consecutive numbers, ascending."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and number == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs


def _run(first: int, last: int) -> range:
    """Returns first..last; raises `ValueError` for a run that cannot be."""
    if not 0 <= last - first < RUN_MAX or first < 0:
        raise ValueError(f"run {first}-{last}")
    return range(first, last + 1)

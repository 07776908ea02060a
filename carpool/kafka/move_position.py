"""Computes committed positions that an operator asks for, and keeps what is complete. Pure."""

from __future__ import annotations

from carpool.errors import ConfigError
from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import (
    Completed,
    decode_metadata,
    encode_metadata,
    head_of,
    with_instance_id,
)


def skipped(now: Position, offset: int) -> Position:
    """Returns the position once the record at `offset` counts as complete.

    Raises `ConfigError` for a record that is complete already.
    """
    low, completed = _known(now)
    if offset < low or offset in completed.whole:
        raise ConfigError(f"the record at {offset} is complete already")
    completed.whole.add(offset, offset)
    completed.parts.pop(offset, None)
    first = next(iter(completed.whole))
    if first[0] == low:
        low = first[1] + 1
    return _position(now, low, completed)


def reset_to(now: Position, offset: int) -> Position:
    """Returns the position that reads from `offset` on, and repeats nothing after the old one."""
    return _position(now, offset, decode_metadata(now.offset or 0, now.metadata))


def unprocessed_before(now: Position, offset: int) -> int:
    """Returns how many offsets before this one are not complete: at most so many records."""
    low, completed = _known(now)
    still = completed.whole.copy()
    still.discard_before(offset)
    return offset - low - (len(completed.whole) - len(still))


def _known(now: Position) -> tuple[int, Completed]:
    if now.offset is None:
        raise ConfigError("the group has committed nothing for this partition")
    return now.offset, decode_metadata(now.offset, now.metadata)


def _position(now: Position, low: int, completed: Completed) -> Position:
    completed.whole.discard_before(low)
    parts = {offset: done for offset, done in completed.parts.items() if offset >= low}
    metadata = encode_metadata(low, Completed(completed.whole, parts))
    owner = head_of(now.metadata).instance_id
    return Position(low, metadata if owner is None else with_instance_id(metadata, owner))

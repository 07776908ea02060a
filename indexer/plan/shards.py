"""Decides which rows are embedded and saved together. Pure."""

from __future__ import annotations

from typing import NamedTuple

SHARD_ROWS = 256
"""Rows between two saves: fewer make many files, more repeat more work after a kill."""


class Shard(NamedTuple):
    """Rows that are embedded and saved together: [start, stop)."""

    number: int
    start: int
    stop: int


def plan_shards(row_count: int, shard_rows: int) -> tuple[Shard, ...]:
    """Returns the shards of `row_count` rows. They are the same in every run."""
    starts = range(0, row_count, shard_rows)
    return tuple(
        Shard(number, start, min(start + shard_rows, row_count))
        for number, start in enumerate(starts)
    )

"""What a stage did for one part or for several together, as a value for traces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Attribute = str | int | float | bool | tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """`name` has few values. Times are epoch microseconds. `kind`: client for a remote call.

    `shared_by`: the (unit id, part) pairs of an operation for several queries, such as a window; it
    becomes a span with a link to each. Empty: for the first part of its `Done`.
    """

    name: str
    started_us: int
    ended_us: int
    kind: Literal["internal", "client"] = "internal"
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    shared_by: tuple[tuple[int, int], ...] = ()

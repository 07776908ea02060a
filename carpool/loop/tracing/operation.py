"""What a stage did for a part, or for several at once, as a trace shows it: a value, handed over
with the finished work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Attribute = str | int | float | bool | tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """`name` has few values; times are epoch microseconds. `kind`: client where another process did
    the work.

    `shared_by`: (unit id, part) pairs that it was done for together, such as the queries of a
    window: it becomes a span of its own with a link to each. Empty: it was done for the one part
    that it is handed over with.
    """

    name: str
    started_us: int
    ended_us: int
    kind: Literal["internal", "client"] = "internal"
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    shared_by: tuple[tuple[int, int], ...] = ()

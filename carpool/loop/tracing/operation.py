"""An operation of a stage, as a value for traces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Attribute = str | int | float | bool | tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """Becomes a span. `name` has few values; times are epoch microseconds.

    `kind`: "client" for a remote call. `shared_by`: (unit id, part) of each query of a shared
    operation, such as a window: its span links to each. Empty: of the first part of its `Done`.
    """

    name: str
    started_us: int
    ended_us: int
    kind: Literal["internal", "client"] = "internal"
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    shared_by: tuple[tuple[int, int], ...] = ()

"""Messages that other threads leave for the search thread of an executor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopSearching:
    """The last message."""


@dataclass(frozen=True, slots=True)
class DropSearches:
    """The searches `keys` are forgotten."""

    keys: tuple[int, ...]

"""Messages that other threads leave for the search thread of an executor."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.record import ClusterId
from searcher.executor import ScanResult


@dataclass(frozen=True, slots=True)
class StopSearching:
    """The last message."""


@dataclass(frozen=True, slots=True)
class DropSearches:
    """The searches `keys` are forgotten."""

    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FoundElsewhere:
    """Another searcher was to scan the clusters `asked` for the search `key`; see `Executor`."""

    key: int
    asked: tuple[ClusterId, ...]
    found: ScanResult | None

"""The queries in hand: which searches each has, what it waits for, and how much more fits."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from carpool.loop.stage import Credit, Unit
from schemas.group import Group, GroupedQuery
from schemas.topics import GROUPS
from searcher.build import OpenSearcher
from searcher.executor import SearchResult, together
from searcher.snapshot import Snapshot

QUERIES_IN_HAND_MAX = 256
"""Queries that are searched together, and share each cluster that is read. More: a restart repeats
more work, and lag is hidden in memory.
"""
GROUPS_IN_HAND_MAX = 256
"""Groups that are not finished. Queries are limited, too, so this is for groups of one query."""
INTAKE_BYTES_MAX = 2 * GROUPS.max_message_bytes
"""Bytes of these groups, outside the budget; room for the largest record of the topic."""


@dataclass(frozen=True, slots=True)
class PendingSearch:
    """A search of part `part` of a group in hand. `keys`: of all searches of its query.

    `opened` is the index that it began with, from which its record is made, too, and `snapshot`
    what it sees.
    """

    unit: Unit[Group]
    part: int
    keys: tuple[int, ...]
    opened: OpenSearcher
    snapshot: Snapshot | None = None

    @property
    def grouped(self) -> GroupedQuery:
        """Its query."""
        return self.unit.record.queries[self.part]


class InHand:
    """See the module. Thread-safe. A search is known by its key, from `take` to `let_go`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._searches: dict[int, PendingSearch] = {}
        self._of_unit: dict[int, set[int]] = {}
        self._results: dict[int, SearchResult] = {}  # until the others of the query end
        self._size_bytes = 0
        self._next_key = 0

    def new_keys(self, count: int) -> tuple[int, ...]:
        """Returns keys for the searches of a query, larger than all before. One thread only."""
        first, self._next_key = self._next_key, self._next_key + count
        return tuple(range(first, self._next_key))

    def take(self, search: PendingSearch) -> None:
        """Adds the searches of a query."""
        unit = search.unit
        with self._lock:
            if unit.id not in self._of_unit:
                self._size_bytes += unit.message.size_bytes
            self._of_unit.setdefault(unit.id, set()).update(search.keys)
            self._searches |= dict.fromkeys(search.keys, search)

    def let_go(self, keys: Iterable[int]) -> dict[int, PendingSearch]:
        """Removes searches, and returns those that were there."""
        gone = {}
        with self._lock:
            for key in keys:
                self._results.pop(key, None)
                search = self._searches.pop(key, None)
                if search is None:
                    continue
                gone[key] = search
                of_unit = self._of_unit[search.unit.id]
                of_unit.remove(key)
                if not of_unit:
                    del self._of_unit[search.unit.id]
                    self._size_bytes -= search.unit.message.size_bytes
        return gone

    def drop(self, keys: Iterable[int]) -> None:
        """Removes searches, here and from their executors."""
        for key, search in self.let_go(keys).items():
            search.opened.executor.drop((key,))

    def get(self, keys: Iterable[int]) -> dict[int, PendingSearch]:
        """Returns the searches of these keys that are in hand."""
        with self._lock:
            return {key: self._searches[key] for key in keys if key in self._searches}

    def all(self) -> Mapping[int, PendingSearch]:
        """Returns all searches, by key."""
        with self._lock:
            return dict(self._searches)

    def uses(self, opened: OpenSearcher) -> bool:
        """Returns whether a search that began with this index goes on."""
        with self._lock:
            return any(search.opened is opened for search in self._searches.values())

    def keys_of(self, unit_ids: Iterable[int], part: int | None = None) -> list[int]:
        """Returns the keys of the searches of units, or of one part of them."""
        with self._lock:
            return [
                key
                for unit_id in unit_ids
                for key in self._of_unit.get(unit_id, ())
                if part is None or self._searches[key].part == part
            ]

    def joined(self, key: int, found: SearchResult) -> SearchResult | None:
        """Returns the result of all searches of a query; None: some go on, or it was revoked."""
        with self._lock:
            search = self._searches.get(key)
            if search is None:
                return None
            self._results[key] = found
            ended = [self._results[each] for each in search.keys if each in self._results]
        return together(ended) if len(ended) == len(search.keys) else None

    def credit(self) -> Credit:
        """Returns how many groups and bytes fit."""
        with self._lock:
            if len(self._searches) >= QUERIES_IN_HAND_MAX:
                return Credit(records=0, size_bytes=0)
            return Credit(
                records=max(0, GROUPS_IN_HAND_MAX - len(self._of_unit)),
                size_bytes=max(0, INTAKE_BYTES_MAX - self._size_bytes),
            )

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the books disagree."""
        with self._lock:
            assert self._searches.keys() == {key for keys in self._of_unit.values() for key in keys}
            assert self._size_bytes >= 0 and all(self._of_unit.values())
            assert self._results.keys() <= self._searches.keys()


def owed(unit: Unit[Group]) -> Sequence[int]:
    """Returns the parts of a group that are not committed yet, in its order."""
    return tuple(part for part in range(unit.parts) if part not in unit.parts_done)

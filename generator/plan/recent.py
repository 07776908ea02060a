"""A dictionary of bounded size that forgets its oldest entries, in constant time and without a list
of ages.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Holds at most `entries_max` entries, and of those that were put in always the last
    `entries_max // 2`.

    Two generations: when the young one holds half of what may be held, the old one is dropped and
    the young one takes its place. Deleting one by one from the front of a dictionary would take
    longer the more is deleted.
    """

    def __init__(self, entries_max: int) -> None:
        if entries_max < 2:
            raise ValueError(f"entries_max {entries_max} is less than 2")
        self._half = entries_max // 2
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    @property
    def entries(self) -> int:
        """Entries that take memory: a key that was put in twice may count twice."""
        return len(self._young) + len(self._old)

    def __contains__(self, key: K) -> bool:
        """Whether `key` is held."""
        return key in self._young or key in self._old

    def get(self, key: K) -> V | None:
        """Returns what was last put in under `key`, or None."""
        found = self._young.get(key)
        return self._old.get(key) if found is None else found

    def put(self, key: K, value: V) -> None:
        """Puts a value in, in place of what was there."""
        self._young[key] = value
        if len(self._young) >= self._half:
            self._young, self._old = {}, self._young

    def discard(self, key: K) -> None:
        """Forgets `key`, if it is held."""
        self._young.pop(key, None)
        self._old.pop(key, None)

"""A dictionary of bounded size that forgets its oldest entries, in constant time."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import Generic, TypeVar

DIGEST_BYTES = 16
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Keeps at most `entries_max` entries, always including the last `entries_max // 2` put in.

    There are two dictionaries: when the young one has half of the entries, the old one is dropped
    and the young one becomes old. To delete single entries from the front of a dictionary would
    take longer the more are deleted.
    """

    def __init__(self, entries_max: int) -> None:
        if entries_max < 2:
            raise ValueError(f"entries_max {entries_max} is less than 2")
        self._half = entries_max // 2
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._young or key in self._old

    def get(self, key: K) -> V | None:
        """Returns what was last put in under `key`, or None."""
        found = self._young.get(key)
        return self._old.get(key) if found is None else found

    def put(self, key: K, value: V) -> None:
        """Sets the value of `key`."""
        self._young[key] = value
        if len(self._young) >= self._half:
            self._young, self._old = {}, self._young

    def discard(self, key: K) -> None:
        """Forgets `key`, if it is there."""
        self._young.pop(key, None)
        self._old.pop(key, None)


def digest_of(text: str) -> bytes:
    """Returns the digest that is kept of an id or a key, `DIGEST_BYTES` long."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()

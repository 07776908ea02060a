"""The seam of eviction policies: they see every request, insertion and removal, and rank what is resident."""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

from schemas.record import ClusterId


class CachePolicy(Protocol):
    """Ranks resident clusters for eviction. Pure and deterministic: ties go to the lower cluster id or the older use."""

    def touch(self, cluster: ClusterId) -> None:
        """A query asks for `cluster`, resident or not."""
        ...

    def insert(self, cluster: ClusterId) -> None:
        """`cluster` becomes resident; it must not be. Whether a query or a prefetch had it read is not told."""
        ...

    def remove(self, cluster: ClusterId) -> None:
        """`cluster` is no longer resident; it must have been."""
        ...

    def victim(self, protected: Set[ClusterId]) -> ClusterId | None:
        """Returns the resident cluster to evict first, of those not in `protected`; None when there is none.

        Asking changes nothing: two calls in a row return the same.
        """
        ...

    def residents(self) -> frozenset[ClusterId]:
        """Returns what is resident, by the books of this policy; for checks."""
        ...

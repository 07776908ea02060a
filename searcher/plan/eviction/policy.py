"""The interface of eviction policies: they see every request, insertion and removal."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Protocol

from searcher.plan.slices import SliceId


class CachePolicy(Protocol):
    """Ranks resident clusters for eviction.

    Pure and deterministic: of equals, the lower cluster id or the older use is evicted first.
    """

    def touch(self, cluster: SliceId) -> None:
        """A query requests `cluster`, resident or not."""
        ...

    def set_horizon(self, horizon: Mapping[SliceId, int]) -> None:
        """A window begins; called before its queries touch a cluster, also with an empty horizon.

        `horizon`: in how many windows a cluster is needed next, 1 for the window after this one. A
        cluster that is not in it is not needed in the known windows. It replaces the previous one.
        It is advice: it may be out of date, or name clusters that do not exist. The mapping is
        copied.
        """
        ...

    def insert(self, cluster: SliceId) -> None:
        """`cluster` becomes resident; it must not be resident yet."""
        ...

    def remove(self, cluster: SliceId) -> None:
        """`cluster` is no longer resident. Raises `KeyError` if it was not."""
        ...

    def victim(self, protected: Set[SliceId]) -> SliceId | None:
        """Returns the resident cluster to evict first that is not in `protected`; None if there is
        none.

        Changes no later answer. The caller may evict another cluster. Fast where `protected` is a
        set or frozenset, also if it contains nearly all clusters.
        """
        ...

    def residents(self) -> frozenset[SliceId]:
        """Returns the resident clusters; for checks."""
        ...

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the data of this policy contradict each other."""
        ...

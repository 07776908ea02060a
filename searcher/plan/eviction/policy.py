"""The seam of eviction policies: they see every request, insertion and removal, and rank what is
resident.

What is known of the future reaches them by `set_horizon`, and stays with the planner too: to ask
whether a victim is wanted later than what would be read ahead in its place, it compares the two in
the horizon; no policy need answer that.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Protocol

from searcher.plan.slices import SliceId


class CachePolicy(Protocol):
    """Ranks resident clusters for eviction. Pure and deterministic: ties go to the lower cluster id
    or the older use.
    """

    def touch(self, cluster: SliceId) -> None:
        """A query asks for `cluster`, resident or not."""
        ...

    def set_horizon(self, horizon: Mapping[SliceId, int]) -> None:
        """A window begins, told before its queries touch anything: its clock, also where nothing is
        foreseen (empty).

        `horizon`: windows until a cluster is wanted next, counted from this window, 1 for the
        window after it; a cluster that is not in it is not wanted within the windows that were read
        ahead. Advice, of no cluster in particular: absent, stale, or naming clusters that do not
        exist. It replaces what was told before. The mapping is not kept.
        """
        ...

    def insert(self, cluster: SliceId) -> None:
        """`cluster` becomes resident; it must not be. Whether a query or a prefetch had it read is
        not told.
        """
        ...

    def remove(self, cluster: SliceId) -> None:
        """`cluster` is no longer resident; it must have been."""
        ...

    def victim(self, protected: Set[SliceId]) -> SliceId | None:
        """Returns the resident cluster to evict first, of those not in `protected`; None when there
        is none.

        Asking changes nothing: two calls in a row return the same. Whoever evicts another one than
        this may. Cheap, also where nearly everything is protected, when `protected` is a set or
        frozenset rather than a view built for the call.
        """
        ...

    def residents(self) -> frozenset[SliceId]:
        """Returns what is resident, by the books of this policy; for checks."""
        ...

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the books of this policy do not agree with each other."""
        ...

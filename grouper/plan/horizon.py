"""The horizon: the clusters of the next windows, how soon they are needed, by how many queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from schemas.group import HorizonEntry
from schemas.record import ClusterId

ENTRY_BYTES = len('{"cluster":,"windows":,"queries":},')
"""Bytes of an entry in JSON without its three numbers, with a comma."""

Wants = Mapping[ClusterId, int]
"""The number of queries of a window that want each cluster, if at least one does."""


def wants_of(clusters: Iterable[Sequence[ClusterId]]) -> Wants:
    """Returns the demand of a window. `clusters`: C(q) of each of its queries."""
    return Counter(chain.from_iterable(clusters))


def plan_horizon(
    windows: Sequence[Wants], *, bytes_max: int | None = None
) -> tuple[HorizonEntry, ...]:
    """Returns an entry for each cluster of `windows`, by windows until its next use.

    `windows[0]` is the window that leaves next: its clusters have 1 in `windows`, those of the next
    one 2. `queries` counts over all windows. If the entries are larger than `bytes_max`, it keeps
    the soonest, then those with the most queries. 0.5 ms for a thousand clusters.
    """
    soonest: dict[ClusterId, int] = {}
    queries: Counter[ClusterId] = Counter()
    for number, wants in enumerate(windows, start=1):
        for cluster in sorted(wants.keys() - soonest.keys()):
            soonest[cluster] = number
        queries.update(wants)
    entries = tuple(
        HorizonEntry(cluster=cluster, windows=number, queries=queries[cluster])
        for cluster, number in soonest.items()
    )
    return entries if bytes_max is None else _within(entries, bytes_max)


def _within(entries: tuple[HorizonEntry, ...], bytes_max: int) -> tuple[HorizonEntry, ...]:
    sizes = [
        ENTRY_BYTES + len(str(entry.cluster)) + len(str(entry.windows)) + len(str(entry.queries))
        for entry in entries
    ]
    if sum(sizes) <= bytes_max:
        return entries
    kept = []
    for place in sorted(
        range(len(entries)),
        key=lambda place: (entries[place].windows, -entries[place].queries, place),
    ):
        bytes_max -= sizes[place]
        if bytes_max < 0:
            break
        kept.append(place)
    return tuple(entries[place] for place in sorted(kept))

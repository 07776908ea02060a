"""The horizon: which clusters the windows that come next will want, how soon, and how many of their queries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schemas.group import HorizonEntry
from schemas.record import ClusterId

ENTRY_BYTES = len('{"cluster":,"windows":,"queries":},')
"""What an entry takes in JSON besides its three numbers, with a comma."""


def plan_horizon(
    windows: Sequence[Iterable[Sequence[ClusterId]]], *, bytes_max: int | None = None
) -> tuple[HorizonEntry, ...]:
    """Returns an entry for each cluster that `windows` want, ascending by windows until its next use, then by cluster.

    `windows[0]` is the window that leaves next, and holds C(q) of each of its queries. `windows` of an entry is 1 for
    that window, 2 for the one behind it; `queries` counts over all of `windows`. Where the entries would take more than
    `bytes_max` in a record, those stay that are wanted soonest, then by the most queries.
    """
    soonest: dict[ClusterId, int] = {}
    queries: dict[ClusterId, int] = {}
    for number, window in enumerate(windows, start=1):
        for clusters in window:
            for cluster in clusters:
                soonest.setdefault(cluster, number)
                queries[cluster] = queries.get(cluster, 0) + 1
    entries = [
        HorizonEntry(cluster=cluster, windows=number, queries=queries[cluster]) for cluster, number in soonest.items()
    ]
    if bytes_max is not None:
        entries = _within(entries, bytes_max)
    return tuple(sorted(entries, key=lambda entry: (entry.windows, entry.cluster)))


def _within(entries: list[HorizonEntry], bytes_max: int) -> list[HorizonEntry]:
    left = bytes_max
    kept = []
    for entry in sorted(entries, key=lambda entry: (entry.windows, -entry.queries, entry.cluster)):
        left -= ENTRY_BYTES + sum(len(str(number)) for number in (entry.cluster, entry.windows, entry.queries))
        if left < 0:
            break
        kept.append(entry)
    return kept

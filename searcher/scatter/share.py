"""What a lane does for a query of a scattered group. Pure.

Each cluster belongs to one lane. The home of a query is the lane of its nearest cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from schemas.group import Group, GroupedQuery, lane_of
from schemas.query import SearchMode
from schemas.record import ClusterId


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one lane.

    `kind`: `answer` at home; `scan` for the home of the query; `refuse` where the home waits and
    this lane cannot scan; `nothing` where the home does not wait for this lane. `clusters`: to
    search; `elsewhere`: those of them that other lanes scan.
    """

    kind: Literal["answer", "scan", "refuse", "nothing"]
    clusters: tuple[ClusterId, ...] = ()
    elsewhere: tuple[ClusterId, ...] = ()


def home_of(group: Group, grouped: GroupedQuery) -> int:
    """Returns the lane that answers a query; in a group that is not scattered, the group's."""
    return lane_of(grouped.clusters[0], group.lane_count) if group.is_scattered else group.lane


def clusters_of(group: Group, grouped: GroupedQuery, lane: int) -> tuple[ClusterId, ...]:
    """Returns the clusters of a query that belong to `lane`, nearest first."""
    clusters = dict.fromkeys(grouped.clusters)
    return tuple(cluster for cluster in clusters if lane_of(cluster, group.lane_count) == lane)


def share_of(
    group: Group, grouped: GroupedQuery, mode: SearchMode, *, scans_codes: bool, hears_others: bool
) -> Share:
    """Returns the share of the group's lane in a query.

    `scans_codes`: whether this searcher does; `hears_others`: whether it reads their scans. Exact
    searches are not shared.
    """
    every = tuple(dict.fromkeys(grouped.clusters))
    if not group.is_scattered:
        return Share("answer", every)
    here = clusters_of(group, grouped, group.lane)
    if home_of(group, grouped) == group.lane:
        waits = scans_codes and hears_others and mode != "exact"
        elsewhere = tuple(each for each in every if each not in here) if waits else ()
        return Share("answer", every, elsewhere)
    if mode == "exact" or not here:
        return Share("nothing")
    return Share("scan", here) if scans_codes else Share("refuse")

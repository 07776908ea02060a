"""What a lane does for a query of a scattered group. Pure.

Each cluster belongs to one lane. The home of a query is the lane of its nearest cluster.
"""

from __future__ import annotations

from collections.abc import Collection
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


def clusters_of(group: Group, grouped: GroupedQuery, lane: int) -> tuple[ClusterId, ...]:
    """Returns the clusters of a query that belong to `lane`, nearest first."""
    clusters = dict.fromkeys(grouped.clusters)
    return tuple(cluster for cluster in clusters if lane_of(cluster, group.lane_count) == lane)


def share_of(
    group: Group,
    grouped: GroupedQuery,
    default_mode: SearchMode,
    *,
    own_lanes: Collection[int],
    scans_codes: bool,
    hears_others: bool,
) -> Share:
    """Returns the share of the group's lane in a query.

    `default_mode`: of a query that names none; `own_lanes`: of this searcher, which does not wait
    for its own scans; `scans_codes`: whether it does; `hears_others`: whether it reads the scans of
    others. Exact searches are not shared. Another searcher may have another default, so only a mode
    that the query names tells that its home does not wait.
    """
    every = tuple(dict.fromkeys(grouped.clusters))
    if not group.is_scattered:
        return Share("answer", every)
    mode = grouped.query.search_mode or default_mode
    if group.home_of(grouped) == group.lane:
        if not (scans_codes and hears_others) or mode == "exact":
            return Share("answer", every)
        lanes = {group.lane, *own_lanes}
        others = (each for each in every if lane_of(each, group.lane_count) not in lanes)
        return Share("answer", every, tuple(others))
    here = clusters_of(group, grouped, group.lane)
    if not here or grouped.query.search_mode == "exact":
        return Share("nothing")
    return Share("scan", here) if scans_codes and mode != "exact" else Share("refuse")

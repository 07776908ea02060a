"""What a lane does for a query of a scattered group: between all lanes, each cluster once."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from schemas.group import Group, GroupedQuery, lane_of
from schemas.query import SearchMode
from schemas.record import ClusterId
from searcher.scatter.share import Share, share_of
from tests.records import a_group, a_grouped_query

CLUSTERS = st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True)
MODES = st.sampled_from(["default", "margin", "exact"])


def scattered(grouped: GroupedQuery, lane: int, lanes: int) -> Group:
    group = a_group(grouped)
    return msgspec.structs.replace(group, lane=lane, lane_count=lanes, is_scattered=True)


def shares(
    clusters: list[int],
    lanes: int,
    default_mode: SearchMode = "default",
    asked: SearchMode | None = None,
    own: int = 1,
    scans_codes: bool = True,
) -> tuple[int, dict[int, Share]]:
    """Returns the home, and the share of each lane; each searcher has `own` lanes."""
    grouped = a_grouped_query("q", clusters)
    query = msgspec.structs.replace(grouped.query, search_mode=asked)
    grouped = msgspec.structs.replace(grouped, query=query)
    found = {}
    for lane in range(lanes):
        first = lane // own * own
        found[lane] = share_of(
            scattered(grouped, lane, lanes),
            grouped,
            default_mode,
            own_lanes=range(first, first + own),
            scans_codes=scans_codes,
            hears_others=True,
        )
    return scattered(grouped, 0, lanes).home_of(grouped), found


@given(CLUSTERS, st.integers(2, 5))
def test_home_waits_for_the_clusters_that_other_lanes_scan_and_for_no_others(
    clusters: list[int], lanes: int
) -> None:
    home, found = shares(clusters, lanes)
    assert home == lane_of(ClusterId(clusters[0]), lanes)
    scanned: list[int] = []
    for lane, share in found.items():
        if lane == home:
            assert share.kind == "answer" and list(share.clusters) == clusters
        elif share.kind == "scan":
            assert share.clusters and not share.elsewhere
            scanned += share.clusters
        else:
            assert share == Share("nothing")
    assert sorted(scanned) == sorted(found[home].elsewhere)


@given(CLUSTERS, st.integers(2, 6), st.integers(1, 3))
def test_a_searcher_of_several_lanes_does_not_wait_for_itself(
    clusters: list[int], lanes: int, own: int
) -> None:
    home, found = shares(clusters, lanes, own=own)
    mine = set(range(home // own * own, home // own * own + own))
    waits_for = {lane_of(cluster, lanes) for cluster in found[home].elsewhere}
    assert not waits_for & mine
    assert all(found[lane].kind == "scan" for lane in waits_for)


@given(CLUSTERS, st.integers(2, 5), MODES, st.none() | MODES, st.booleans())
def test_whatever_the_settings_a_home_that_waits_gets_a_scan_or_a_refusal(
    clusters: list[int],
    lanes: int,
    other_default: SearchMode,
    asked: SearchMode | None,
    scans_codes: bool,
) -> None:
    home, ours = shares(clusters, lanes, asked=asked)
    _, theirs = shares(clusters, lanes, other_default, asked, scans_codes=scans_codes)
    for cluster in ours[home].elsewhere:
        assert theirs[lane_of(cluster, lanes)].kind in ("scan", "refuse")

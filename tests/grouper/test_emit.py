"""Groups as records: Eq. 5 of CaGR-RAG, cut to what the topic takes, and the horizon."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouper.plan.emit import ENVELOPE_BYTES, Header, PlannedGroup, plan_records, union_of
from grouper.plan.horizon import plan_horizon, wants_of
from schemas.group import GroupedQuery, HorizonEntry, NextGroup
from schemas.record import ClusterId
from tests.records import a_group, a_grouped_query, a_query

HEADER = Header(
    index_version="v-7",
    centroids_fingerprint="c1d2",
    embedding_model="e3f4",
    grouper="host-1",
    window_id=42,
)
LARGE = 1_000_000


def grouped(query_id: str, clusters: Sequence[int], *, text: str = "why?") -> GroupedQuery:
    return a_grouped_query(a_query(query_id, text), clusters, vector=b"\x00\x01\x02\x03")


def planned(
    groups: Sequence[Sequence[int]],
    queries: Sequence[GroupedQuery],
    *,
    group_bytes_max: int = LARGE,
    first: int = 10,
    horizon: Sequence[HorizonEntry] = (),
) -> tuple[PlannedGroup, ...]:
    return plan_records(
        groups,
        queries,
        HEADER,
        first_sequences=[first],
        group_bytes_max=group_bytes_max,
        horizon=horizon,
    )


def horizon_of(entries: int) -> tuple[HorizonEntry, ...]:
    return tuple(
        HorizonEntry(cluster=ClusterId(cluster), windows=1, queries=2) for cluster in range(entries)
    )


def test_a_group_carries_its_queries_their_clusters_and_what_comes_next() -> None:
    """Eq. 5: (G, its queries, C(G), first query of the next group, its clusters)."""
    a, b, c = grouped("a", (7, 2)), grouped("b", (9, 1)), grouped("c", (2, 11))
    of_window = partial(a_group, **dataclasses.asdict(HEADER))
    following = NextGroup(query_id="b", clusters=(ClusterId(9), ClusterId(1)))
    assert planned([(0, 2), (1,)], [a, b, c]) == (
        PlannedGroup(group=of_window(a, c, sequence=10, next=following), members=(0, 2)),
        PlannedGroup(group=of_window(b, sequence=11, next=None), members=(1,)),
    )


SHARED, OTHER = tuple(range(10_000, 10_500)), tuple(range(20_000, 20_500))


@pytest.mark.parametrize(
    ("clusters", "fit", "full", "cut"),
    [
        ([SHARED, SHARED], (2, 500), [(0, 1)], [(0,), (1,)]),
        ([SHARED, OTHER, SHARED], (3, 1_000), [(0, 1, 2)], [(0, 1), (2,)]),
        ([SHARED] * 4, (2, 500), [(0, 1), (2, 3)], [(0,), (1,), (2,), (3,)]),
    ],
)
def test_a_shared_cluster_is_counted_once_in_each_record(
    clusters: list[tuple[int, ...]],
    fit: tuple[int, int],
    full: list[tuple[int, ...]],
    cut: list[tuple[int, ...]],
) -> None:
    """`fit`: queries and cluster ids of 6 bytes that fill a record exactly."""
    queries = [grouped(name, each) for name, each in zip("abcd", clusters, strict=False)]
    query_bytes = len(msgspec.json.encode(queries[0])) + 1
    next_bytes = len(msgspec.json.encode(NextGroup(query_id="a", clusters=queries[0].clusters)))
    fixed_bytes = ENVELOPE_BYTES + 6 * len("v-7c1d2e3f4host-1") + next_bytes
    exact_bytes = fixed_bytes + fit[0] * query_bytes + fit[1] * 6
    for group_bytes_max, expected in ((exact_bytes, full), (exact_bytes - 1, cut)):
        records = planned([range(len(queries))], queries, group_bytes_max=group_bytes_max)
        assert [record.members for record in records] == expected


TEXTS = st.text(alphabet=st.sampled_from('a"\\\x01é中😀\n'), min_size=1, max_size=120)
QUERIES = st.lists(
    st.builds(
        grouped,
        query_id=TEXTS.map(lambda text: text[:20]),
        clusters=st.lists(st.integers(0, 99_999), min_size=1, max_size=12, unique=True),
        text=TEXTS,
    ),
    min_size=1,
    max_size=12,
)


@given(
    queries=QUERIES,
    group_bytes_max=st.integers(700, 4_000),
    data=st.data(),
    entries=st.integers(0, 20),
)
def test_cutting_respects_the_limit_keeps_the_order_and_wastes_no_room(
    queries: list[GroupedQuery], group_bytes_max: int, data: st.DataObject, entries: int
) -> None:
    horizon = horizon_of(entries)
    order = data.draw(st.permutations(range(len(queries))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(queries)), max_size=4)) | {0, len(queries)})
    groups = [tuple(order[start:end]) for start, end in itertools.pairwise(cuts)]
    header = Header(
        index_version='"' * 40,
        centroids_fingerprint="\x01" * 20,
        embedding_model="é" * 20,
        grouper="g",
        window_id=2**63,
    )
    records = plan_records(
        groups,
        queries,
        header,
        first_sequences=[2**62],
        group_bytes_max=group_bytes_max,
        horizon=horizon,
    )
    assert [member for record in records for member in record.members] == order
    assert [record.group.sequence - 2**62 for record in records] == list(range(len(records)))
    for number, record in enumerate(records):
        group = record.group
        assert group.queries == tuple(queries[member] for member in record.members)
        assert set(group.clusters) == {
            cluster for query in group.queries for cluster in query.clusters
        }
        assert any(set(record.members) <= set(members) for members in groups), (
            "a record is of one group"
        )
        assert group.horizon in ((), horizon if number == 0 else ())
        if len(record.members) > 1 or group.horizon:
            assert len(msgspec.json.encode(group)) <= group_bytes_max
        if number + 1 == len(records):
            assert group.next is None
            continue
        first = records[number + 1].group.queries[0]
        assert group.next == NextGroup(query_id=first.query.query_id, clusters=first.clusters)
        together = (*record.members, records[number + 1].members[0])
        if any(set(together) <= set(members) for members in groups):
            # Cut only where the next query may not have fitted: within what is set aside for
            # `next`, names and braces.
            wider = msgspec.structs.replace(
                group,
                queries=(*group.queries, first),
                clusters=union_of([*group.queries, first]),
                next=None,
                horizon=horizon if number == 0 else (),
            )
            aside = (
                ENVELOPE_BYTES
                + 6 * 81
                + max(len(msgspec.json.encode(q.query.query_id)) + 6 * 12 + 40 for q in queries)
            )
            assert len(msgspec.json.encode(wider)) > group_bytes_max - aside


@given(queries=QUERIES, lanes=st.integers(2, 5), data=st.data())
def test_lanes_share_out_the_records_of_a_window(
    queries: list[GroupedQuery], lanes: int, data: st.DataObject
) -> None:
    horizon = horizon_of(3)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(queries)), max_size=6)) | {0, len(queries)})
    groups = [tuple(range(start, end)) for start, end in itertools.pairwise(cuts)]
    firsts = [100 * lane for lane in range(lanes)]
    shared = plan_records(
        groups, queries, HEADER, first_sequences=firsts, group_bytes_max=LARGE, horizon=horizon
    )
    assert [one.members for one in shared] == [one.members for one in planned(groups, queries)]
    counts = [0] * lanes
    for lane in range(lanes):
        groups_of_lane = [one.group for one in shared if one.group.lane == lane]
        assert [one.sequence for one in groups_of_lane] == [
            firsts[lane] + number for number in range(len(groups_of_lane))
        ]
        for number, group in enumerate(groups_of_lane):
            assert group.horizon == (horizon if not number else ())
            following = groups_of_lane[number + 1 : number + 2]
            expected = following[0].queries[0].query.query_id if following else None
            assert (group.next.query_id if group.next else None) == expected
            counts[lane] += len(group.queries)
    largest = max(len(group) for group in groups)
    assert max(counts) <= len(queries) / lanes + largest


def test_windows_of_one_query_take_turns_with_the_lanes() -> None:
    query = grouped("a", (1,))
    found = [
        plan_records(
            [(0,)],
            [query],
            dataclasses.replace(HEADER, window_id=window),
            first_sequences=[0, 0, 0],
            group_bytes_max=LARGE,
        )[0].group.lane
        for window in range(6)
    ]
    assert found == [0, 1, 2, 0, 1, 2]


# ---- the horizon: when each cluster is wanted next, over windows that were read ahead


WINDOWS = st.lists(
    st.lists(
        st.lists(st.integers(0, 300).map(ClusterId), min_size=1, max_size=6, unique=True),
        max_size=5,
    ),
    max_size=5,
)


def horizon(
    windows: list[list[tuple[ClusterId, ...]]] | list[list[list[ClusterId]]],
    bytes_max: int | None = None,
) -> tuple[HorizonEntry, ...]:
    return plan_horizon([wants_of(window) for window in windows], bytes_max=bytes_max)


def entries(*numbers: tuple[int, int, int]) -> tuple[HorizonEntry, ...]:
    return tuple(HorizonEntry(cluster=ClusterId(c), windows=w, queries=q) for c, w, q in numbers)


def ids(*numbers: int) -> tuple[ClusterId, ...]:
    return tuple(map(ClusterId, numbers))


def test_what_does_not_fit_is_what_is_wanted_last_and_by_the_fewest() -> None:
    windows = [[ids(4), ids(9), ids(9)], [ids(2), ids(7), ids(7)]]
    one_bytes = len(msgspec.json.encode(entries((4, 1, 1))[0])) + 1
    assert horizon(windows, bytes_max=4 * one_bytes) == entries(
        (4, 1, 1), (9, 1, 2), (2, 2, 1), (7, 2, 2)
    )
    assert horizon(windows, bytes_max=4 * one_bytes - 1) == entries((4, 1, 1), (9, 1, 2), (7, 2, 2))
    assert horizon(windows, bytes_max=one_bytes) == entries((9, 1, 2))
    assert horizon(windows, bytes_max=0) == ()


@given(windows=WINDOWS)
def test_every_entry_says_when_and_how_often(windows: list[list[list[ClusterId]]]) -> None:
    found = horizon(windows)
    flat = [
        (number, c)
        for number, window in enumerate(windows, 1)
        for clusters in window
        for c in clusters
    ]
    assert {entry.cluster for entry in found} == {c for _, c in flat}
    for entry in found:
        assert entry.windows == min(number for number, c in flat if c == entry.cluster)
        assert entry.queries == sum(c == entry.cluster for _, c in flat)
    order = [(entry.windows, entry.cluster) for entry in found]
    assert order == sorted(set(order))


@given(windows=WINDOWS, bytes_max=st.integers(0, 2_000))
def test_a_horizon_within_bytes_is_the_best_part_of_the_whole_one(
    windows: list[list[list[ClusterId]]], bytes_max: int
) -> None:
    whole, found = horizon(windows), horizon(windows, bytes_max=bytes_max)
    assert len(msgspec.json.encode(found)) <= bytes_max + 2
    assert set(found) <= set(whole)
    worth = sorted(whole, key=lambda entry: (entry.windows, -entry.queries, entry.cluster))
    assert set(found) == set(worth[: len(found)])
    if len(found) < len(whole):
        assert (
            sum(len(msgspec.json.encode(entry)) + 1 for entry in worth[: len(found) + 1])
            > bytes_max
        )

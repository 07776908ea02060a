"""Groups of a window as records: queries, clusters and the next query (CaGR-RAG, Eq. 5)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from schemas.group import Group, GroupedQuery, HorizonEntry, NextGroup
from schemas.record import ClusterId

ENVELOPE_BYTES = 512
"""Upper bound of a group's JSON without its queries, clusters, `next` and identifiers."""

ESCAPED_BYTES_MAX = 6
"""The most bytes that JSON spends on one character of a string."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """The fields that all groups of a window share."""

    index_version: str
    centroids_fingerprint: str
    embedding_model: str
    grouper: str
    window_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedGroup:
    """A group to write, and the positions in the window of the queries it carries."""

    group: Group
    members: tuple[int, ...]


def plan_records(
    groups: Sequence[Sequence[int]],
    queries: Sequence[GroupedQuery],
    header: Header,
    *,
    first_sequences: Sequence[int],
    group_bytes_max: int,
    horizon: Sequence[HorizonEntry] = (),
) -> tuple[PlannedGroup, ...]:
    """Returns the records of the groups of a window, in order, each within `group_bytes_max`.

    `groups` holds positions in `queries`. Order is kept, of groups and within them. A group that is
    too large becomes several records, in a row; a query that is too large has a record of its own.
    Each lane gets neighbouring records, about as many queries as the others; the lane of the first
    record changes from window to window. In its lane, `sequence` counts on from `first_sequences`,
    by lane, and `next` is the first query of the record that follows, so the last has none.

    `horizon` is the same for the whole window, so only the first record of a lane has it, unless
    that contains a query that is too large.
    """
    sizes = [len(msgspec.json.encode(query)) + 1 for query in queries]  # and its comma
    nexts = [
        NextGroup(query_id=query.query.query_id, clusters=query.all_clusters) for query in queries
    ]
    room = group_bytes_max - _fixed_bytes(header, nexts)
    first_room = room - (len(msgspec.json.encode(horizon)) if horizon else 0)
    pieces: list[tuple[int, ...]] = []
    for members in groups:
        pieces += _split(members, queries, sizes, room, room if pieces else first_room)
    lane_of = _lanes_of(pieces, len(first_sequences), header.window_id)
    in_lane = defaultdict[int, list[int]](list)  # the pieces of each lane
    for number, lane in enumerate(lane_of):
        in_lane[lane].append(number)

    def record(number: int, lane: int) -> Group:
        members, place = pieces[number], in_lane[lane].index(number)
        following = in_lane[lane][place + 1 : place + 2]
        carries_horizon = not place and _cost(members, queries, sizes) <= first_room
        return Group(
            index_version=header.index_version,
            centroids_fingerprint=header.centroids_fingerprint,
            embedding_model=header.embedding_model,
            grouper=header.grouper,
            window_id=header.window_id,
            lane=lane,
            sequence=first_sequences[lane] + place,
            queries=tuple(queries[member] for member in members),
            clusters=union_of([queries[member] for member in members]),
            next=nexts[pieces[following[0]][0]] if following else None,
            horizon=tuple(horizon) if carries_horizon else (),
        )

    return tuple(
        PlannedGroup(group=record(number, lane), members=pieces[number])
        for number, lane in enumerate(lane_of)
    )


def _lanes_of(pieces: Sequence[Sequence[int]], lanes: int, first: int) -> list[int]:
    """Returns the lane of each record of a window; `first`: that of the first, modulo `lanes`."""
    queries = sum(map(len, pieces))
    found, before = [], 0
    for piece in pieces:
        found.append((first + before * lanes // queries) % lanes)
        before += len(piece)
    return found


def union_of(queries: Sequence[GroupedQuery]) -> tuple[ClusterId, ...]:
    """Returns C(G): every cluster that a query of the group probes, once, in ascending order."""
    return tuple(sorted({cluster for query in queries for cluster in query.all_clusters}))


def _fixed_bytes(header: Header, nexts: Sequence[NextGroup]) -> int:
    """Upper bound of the bytes of a record without its queries and clusters."""
    identifiers = (
        header.index_version,
        header.centroids_fingerprint,
        header.embedding_model,
        header.grouper,
    )
    names_bytes = ESCAPED_BYTES_MAX * sum(len(identifier) for identifier in identifiers)
    return (
        ENVELOPE_BYTES
        + names_bytes
        + max((len(msgspec.json.encode(following)) for following in nexts), default=0)
    )


def _split(
    members: Sequence[int],
    queries: Sequence[GroupedQuery],
    sizes: Sequence[int],
    room: int,
    first_room: int,
) -> Iterator[tuple[int, ...]]:
    """Cuts a group into the longest runs whose queries and clusters fit into `room` bytes.

    The first run has `first_room`.
    """
    left = first_room
    piece: list[int] = []
    clusters: set[ClusterId] = set()
    used = 0
    for member in members:
        added = set(queries[member].all_clusters) - clusters
        cost = sizes[member] + _digits(added)
        if piece and used + cost > left:
            yield tuple(piece)
            piece, clusters, used, left = [], set(), 0, room
            added = set(queries[member].all_clusters)
            cost = sizes[member] + _digits(added)
        piece.append(member)
        clusters |= added
        used += cost
    if piece:
        yield tuple(piece)


def _cost(members: Sequence[int], queries: Sequence[GroupedQuery], sizes: Sequence[int]) -> int:
    """Bytes of these queries and their clusters in one record."""
    clusters = {cluster for member in members for cluster in queries[member].all_clusters}
    return sum(sizes[member] for member in members) + _digits(clusters)


def _digits(clusters: set[ClusterId]) -> int:
    """Bytes of these cluster ids in JSON, commas included."""
    return sum(len(str(cluster)) + 1 for cluster in clusters)

"""What the grouper writes: queries in a group, groups as records, answers to expired queries."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from carpool.endings import AskedQuery
from carpool.kafka.records import Output
from carpool.loop.stage import Done
from carpool.origins import origin_of
from grouper.admission import Admitted
from grouper.plan.emit import PlannedGroup
from grouper.plan.window import Window
from grouper.tracing import trace_headers
from schemas.codec import encode
from schemas.group import GroupedQuery, GroupedSearch
from schemas.record import ClusterId, Source
from schemas.topics import GROUPS, Topic, in_class_of

EVENT_SOURCE = "carpool/grouper"


def grouped_query(
    query: Admitted,
    searches: Sequence[tuple[NDArray[np.float32], tuple[ClusterId, ...]]],
    window: Window,
    spent_us: Mapping[str, int],
) -> GroupedQuery:
    """Returns a query as it is in a group: as published, without its vector, with its timings."""
    message = query.unit.message
    waits_us = {
        "kafka_wait": max(0, message.received_us - message.written_us),
        "window_wait": max(0, window.closed_us - message.received_us),
    }
    (row, clusters), *others = searches
    journal = query.unit.record.journal
    other_searches = () if journal is None else journal.other_searches
    return GroupedQuery(
        query=msgspec.structs.replace(query.unit.record, vector=None),
        source=origin_of(message),
        headers=trace_headers(query.unit),
        arrival_us=message.received_us,
        deadline_us=query.deadline_us,
        vector=row.astype("<f4").tobytes(),
        clusters=clusters,
        timings_us={**waits_us, **spent_us},
        other_searches=tuple(
            GroupedSearch(vector=row.astype("<f4").tobytes(), clusters=probed, top_k=search.top_k)
            for (row, probed), search in zip(others, other_searches, strict=True)
        ),
    )


def group_done(planned: PlannedGroup, queries: Sequence[Admitted], now_us: int) -> Done:
    """Returns the record of a group, and the queries that it acknowledges."""
    topic = groups_topic(planned.group.queries[0].source)
    event_id = group_event_id([queries[member].unit.source for member in planned.members])
    value, headers = encode(planned.group, event_id=event_id, source=EVENT_SOURCE, time_us=now_us)
    lane = planned.group.lane
    output = Output(topic=topic.name, key=None, partition=lane, value=value, headers=headers)
    return Done(
        parts=tuple((queries[member].unit.id, 0) for member in planned.members), outputs=(output,)
    )


def groups_topic(source: Source) -> Topic:
    """Returns the topic of a group whose queries, of one class, were read from `source`."""
    return in_class_of(source.topic, GROUPS)


def group_event_id(sources: Sequence[Source]) -> str:
    """Returns the id of the event of a group: the same for the same set of input records."""
    names = sorted(source.place for source in sources)
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "carpool:group:" + ",".join(names)))


def expired(query: Admitted, now_us: int) -> Done:
    """Returns the terminal answer of an expired query; its id is always the same."""
    waited_us = max(0, now_us - query.unit.message.received_us)
    asked = replace(
        AskedQuery.of(query.unit, stage="grouper"), timings_ms={"total": waited_us / 1_000}
    )
    return asked.expired(now_us, "the query was planned")

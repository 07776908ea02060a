"""Deadlines by the clock of this process, which the host's clock may have left. Pure."""

from __future__ import annotations

import msgspec

from carpool.kafka.records import Message
from carpool.loop.stage import R
from schemas.group import Group, GroupedQuery
from schemas.query import Query
from schemas.retrieval import Retrieval


def deadline_us_of(query: Query, message: Message) -> int | None:
    """Returns the published deadline of a query that came with `message`."""
    return None if query.deadline is None else max(0, query.deadline * 1_000 - message.host_lead_us)


def with_local_deadlines(record: R, message: Message) -> R:
    """Returns a group or retrieval with deadlines by this clock; its writer's may differ."""
    if isinstance(record, Group):
        queries = tuple(with_local_deadlines(each, message) for each in record.queries)
        return msgspec.structs.replace(record, queries=queries)
    if not isinstance(record, Retrieval | GroupedQuery) or record.query.deadline is None:
        return record
    return msgspec.structs.replace(record, deadline_us=deadline_us_of(record.query, message))

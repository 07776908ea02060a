"""What each service on the way of a question reads: its topics, and the records in them."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from carpool.endings import QueryEnds
from carpool.kafka.records import Message
from carpool.loop.priority.intake_queues import Intake
from carpool.origins import believed, deadline_us_of, read_query
from schemas.answer import Answer
from schemas.codec import decode, decode_retrieval
from schemas.group import Group, GroupedQuery
from schemas.query import Query
from schemas.retrieval import Retrieval
from schemas.topics import GROUPS, QUERIES, RETRIEVALS

D = TypeVar("D", GroupedQuery, Retrieval)


def query_intake() -> Intake[Query]:
    """Returns the intake of the grouper."""
    ends = QueryEnds("grouper")
    return Intake(topic=QUERIES.name, decode=read_query, believed=believed, ends=ends)


def group_intake() -> Intake[Group]:
    """Returns the intake of the searcher, which owes a result for each query of a group."""
    ends = QueryEnds("searcher")
    return Intake(topic=GROUPS.name, decode=_group, parts=lambda it: len(it.queries), ends=ends)


def retrieval_intake() -> Intake[Retrieval | Answer]:
    """Returns the intake of the generator."""
    return Intake(topic=RETRIEVALS.name, decode=_retrieval, ends=QueryEnds("generator"))


def _group(message: Message) -> Group:
    group = decode(Group, message.value, message.headers)
    local = tuple(_with_local_deadline(each, message) for each in group.queries)
    return msgspec.structs.replace(group, queries=local)


def _retrieval(message: Message) -> Retrieval | Answer:
    record = decode_retrieval(message.value, message.headers)
    return record if isinstance(record, Answer) else _with_local_deadline(record, message)


def _with_local_deadline(record: D, message: Message) -> D:
    """Returns a record with its deadline by this clock; its writer's may differ."""
    if record.query.deadline is None:
        return record
    return msgspec.structs.replace(record, deadline_us=deadline_us_of(record.query, message))

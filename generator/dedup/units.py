"""Units and records of the log, as the plan sees them."""

from __future__ import annotations

from typing import Any

from carpool.kafka.records import Message
from carpool.loop.stage import Unit
from generator.plan.dedup_actions import DedupQuery, is_reusable
from generator.plan.query_digest import query_digest
from schemas.answer import Answer
from schemas.codec import decode
from schemas.retrieval import Retrieval
from schemas.topics import priority_in_class


def dedup_query(unit: Unit[Any], prompt_key: str | None) -> DedupQuery:
    """Returns a unit as the plan sees it."""
    record = unit.record
    if isinstance(record, Answer):
        assert record.source is not None, "it was read with a source"
        return DedupQuery(
            unit_id=unit.id,
            query_id=record.query_id,
            source=record.source,
            digest=None,
            partition=unit.source.partition,
        )
    return DedupQuery(
        unit_id=unit.id,
        query_id=record.query.query_id,
        source=record.source,
        digest=query_digest(record.query),
        partition=unit.source.partition,
        priority=priority_in_class(record.source.topic, record.query.priority),
        deadline_us=record.deadline_us,
        prompt_key=prompt_key,
    )


def answer_in(message: Message | None) -> Answer | None:
    """Returns the answer of a record of the log; None if it is no readable answer."""
    try:
        return None if message is None else decode(Answer, message.value, message.headers)
    except Exception:  # a fault of ours, too: the row is counted and ignored
        return None


def fits(stored: Answer, unit: Unit[Retrieval], key: str | None, *, is_recent: bool) -> bool:
    """Returns whether a record is the answer to this id, or a recent one to this prompt key."""
    if key is None:
        return stored.status == "ok" and stored.query_id == unit.record.query.query_id
    return is_recent and is_reusable(stored) and stored.prompt_key == key

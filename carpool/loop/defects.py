"""An unexpected exception while a record is handled costs its query a try, and no other query.

An exception that belongs to no record ends the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from carpool.errors import CarpoolError
from carpool.loop.answers import answer_output, beside
from carpool.loop.local_deadlines import deadline_us_of
from carpool.loop.retry import attempt_of, origin_of
from carpool.loop.stage import Done, QueryFailure, Unit
from schemas.answer import Answer, unanswered
from schemas.answer import Stage as StageName
from schemas.codec import with_key
from schemas.group import Group
from schemas.query import Query

T = TypeVar("T")


class DiedError(Exception):
    """The process died again and again with a record in hand, at last alone (ADR 0027)."""


def one_by_one(
    items: Sequence[T], run: Callable[[Sequence[T]], object], charge: Callable[[T, Exception], None]
) -> None:
    """Runs all items together; after an exception each alone. Charges those that raise it alone.

    Raises a `CarpoolError`: no item is its cause.
    """
    try:
        run(items)
    except CarpoolError:
        raise
    except Exception as error:
        if len(items) == 1:
            charge(items[0], error)
        for item in items if len(items) > 1 else ():
            one_by_one((item,), run, charge)


def failed_part(
    unit: Unit[Any], part: int, error: Exception, *, stage: StageName, now_us: int
) -> Done:
    """Returns the failure of the query of a part. It may be tried again, not after `DiedError`."""
    parts, record = ((unit.id, part),), unit.record
    of: Any = record.queries[part] if isinstance(record, Group) else record
    source = origin_of(unit.message) if isinstance(of, Query) else of.source
    if isinstance(of, Query | Answer):
        query = of if isinstance(of, Query) else None  # an answer is not tried again
        headers, deadline_us = with_key(unit.message.headers, unit.message.key), None
    else:
        query = record.published(of) if isinstance(record, Group) else of.query
        headers, deadline_us = of.headers, of.deadline_us
    if query is not None and deadline_us is None:
        deadline_us = deadline_us_of(query, unit.message)
    message = _in_words(error, stage)
    has_died = isinstance(error, DiedError)
    answer = unanswered(
        query_id=of.query_id if query is None else query.query_id,
        status="failed",
        stage=stage,
        error_type="processing_failed",
        message=message,
        retryable=not has_died or len(unit.owed) > 1,  # another query may be the cause
        source=source,
        attempts=attempt_of(headers),
        query=query,
    )
    failure = (
        None
        if query is None
        else QueryFailure(
            query=query,
            source=source,
            headers=headers,
            deadline_us=deadline_us,
            error_type="processing_failed",
            message=message,
            is_transient=not has_died,
        )
    )
    output = answer_output(answer, stage=stage, now_us=now_us, passed_on=headers)
    if stage == "generator":  # no dedup follows, which knows whether the id has an `ok` answer
        output = beside(output, answer, unit.source.partition)
    return Done(parts=parts, outputs=(output,), failure=failure)


def _in_words(error: Exception, stage: StageName) -> str:
    if isinstance(error, DiedError):
        return (
            f"the {stage} died twice while it had this record alone in hand, and twice before: it "
            "is not tried again. Look at how the process ended (its log, its memory), and please "
            "report it; the dead letter can be replayed"
        )
    return (
        f"the {stage} failed on this query with {type(error).__name__}: {str(error)[:500]}. This "
        "is a defect of Carpool: ask again, and please report it with the log"
    )

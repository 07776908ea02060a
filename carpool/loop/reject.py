"""A bad query becomes a dead letter and a `failed` answer; a bad record of a service stops it."""

from __future__ import annotations

import msgspec

from carpool.dead_letters.letter import Reason, make_letter
from carpool.errors import DeploymentError
from carpool.kafka.records import Message, Output
from carpool.loop.answers import answer_output
from carpool.loop.retry import attempt_of, origin_of
from schemas.answer import Stage as StageName
from schemas.answer import unanswered
from schemas.codec import with_key
from schemas.errors import RecordError
from schemas.query import Query
from schemas.record import Source

MESSAGE_CHARS_MAX = 2_000


def stop_at(source: Source, error: RecordError, *, stage: StageName) -> DeploymentError:
    """Returns the error that stops a service at a bad record, which the next version may read."""
    of_writer = " A newer or broken service wrote it: deploy matching versions."
    why = "" if error.reason == "unreadable" else of_writer
    return DeploymentError(
        f"{source.topic}[{source.partition}] at {source.offset} cannot be read by this build: "
        f"{error}.{why} Consumption has stopped; nothing is lost. To pass over this record, whose "
        "questions then get no answer, stop the service and call `carpool groups skip "
        f"{stage} {source.place}`"
    )


def reject_outputs(
    message: Message,
    error: RecordError,
    *,
    group: str,
    stage: StageName,
    now_us: int,
    query: Query | None = None,
) -> tuple[Output, ...]:
    """Returns the dead letter and, where the error names a query id, the `failed` answer.

    `query`: of the record, if it could be read. The dead letter of a step of a workflow has the
    published query, which can be replayed.
    """
    value = message.value
    if query is not None and query.journal is not None:
        value = msgspec.json.encode(query.journal.root)
    reason = Reason(
        group=group,
        stage=stage,
        attempts=attempt_of(message.headers),
        class_name=f"{type(error).__name__}.{error.reason}",
        message=str(error),
    )
    letter = make_letter(
        source=origin_of(message),
        key=message.key,
        value=value,
        headers=message.headers,
        reason=reason,
    )
    if error.query_id is None:
        return (letter,)
    answer = unanswered(
        query_id=error.query_id,
        status="failed",
        stage=stage,
        error_type=error.reason,
        message=str(error)[:MESSAGE_CHARS_MAX],
        source=origin_of(message),
        query=query,
    )
    passed_on = with_key(message.headers, message.key)
    return letter, answer_output(answer, stage=stage, now_us=now_us, passed_on=passed_on)

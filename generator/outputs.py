"""The records that the generator writes: answers, pieces of them, and steps of workflows."""

from __future__ import annotations

import msgspec

from carpool.endings import AskedQuery, answer_output
from carpool.kafka.records import Output
from carpool.loop.stage import Done, Unit
from carpool.retrievals import waiting_output
from carpool.workflow.steps import WorkflowError
from generator.plan.next_round import Round, SearchNext
from schemas.answer import Answer, PartialAnswer, StepDone
from schemas.codec import encode
from schemas.retrieval import Retrieval
from schemas.topics import PARTIAL_ANSWERS


def final(unit: Unit[Retrieval], answer: Answer, now_us: int) -> Done:
    """Returns the work that ends with an answer which is no early end."""
    output = answer_output(
        answer,
        stage="generator",
        now_us=now_us,
        passed_on=unit.record.headers,
        partition=unit.source.partition,
    )
    return Done(parts=((unit.id, 0),), outputs=(output,))


def partial_output(
    retrieval: Retrieval,
    generation_id: str,
    seq: int,
    text: str,
    now_us: int,
    step: StepDone | None = None,
) -> Output:
    """Returns the record of a piece of an answer, or of a finished step."""
    query_id = retrieval.query.query_id
    value, headers = encode(
        PartialAnswer(
            query_id=query_id, generation_id=generation_id, seq=seq, text=text, step=step
        ),
        event_id=f"{generation_id}/{seq}",
        source="carpool/generator",
        time_us=now_us,
        passed_on=retrieval.headers,
    )
    return Output(topic=PARTIAL_ANSWERS.name, key=query_id.encode(), value=value, headers=headers)


def next_output(todo: Round, unit: Unit[Retrieval], now_us: int) -> Output:
    """Returns the record of the next round. Raises `WorkflowError` where it would be too large.

    `unit` is that of the last record, whose journal has all finished steps.
    """
    if isinstance(todo, SearchNext):
        output = AskedQuery.of(unit, stage="generator").searched(todo.query, now_us)
    else:
        waiting = msgspec.structs.replace(
            unit.record, hits=(), other_hits=(), probes=(), completed_us=now_us
        )
        output = waiting_output(waiting, stage="generator")
    if output is None:
        raise WorkflowError("the record of its next step is too large", "workflow_limit")
    return output

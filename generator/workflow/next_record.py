"""The record with which a workflow goes on."""

from __future__ import annotations

import msgspec

from carpool.kafka.records import Output
from carpool.loop.retry import send_back
from carpool.loop.workflow_record import waiting_output
from carpool.workflow.steps import WorkflowError
from generator.workflow.turns import SearchNext, Turn
from schemas.retrieval import Retrieval


def next_output(turn: Turn, retrieval: Retrieval, now_us: int) -> Output:
    """Returns the record of the next round. Raises `WorkflowError` where it would be too large.

    `retrieval`: the last record, whose journal has all finished steps.
    """
    if isinstance(turn, SearchNext):
        output = send_back(
            turn.query, retrieval.source, retrieval.headers, stage="generator", now_us=now_us
        )
    else:
        waiting = msgspec.structs.replace(
            retrieval, hits=(), beside=(), probes=(), completed_us=now_us
        )
        output = waiting_output(waiting, stage="generator", now_us=now_us)
    if output is None:
        raise WorkflowError("the record of its next step is too large", "workflow_limit")
    return output

"""The first step of a workflow: a search goes into a window, a generation to the generator."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from carpool.loop.retry import origin_of
from carpool.loop.stage import Done, Unit
from carpool.loop.workflow_record import waiting_output
from carpool.workflow.journal import Workflows, is_workflow, search_query
from carpool.workflow.steps import Retrieve, WorkflowError
from grouper.admission import IndexFacts, admit
from grouper.tracing import trace_headers
from schemas.errors import RecordError
from schemas.query import Query
from schemas.retrieval import Retrieval


def first_step(
    unit: Unit[Query], workflows: Workflows, facts: IndexFacts, now_us: int
) -> Unit[Query] | Done:
    """Returns the unit with the query to search, or the finished work of one that generates first.

    A query without a workflow, or one that is a later step, is returned as it is. A workflow whose
    program fails is ended by the generator. Raises `RecordError` for one that cannot begin.
    """
    query = unit.record
    if not is_workflow(query) or query.journal is not None:
        return unit
    try:
        query = workflows.begin(query)
    except WorkflowError as error:
        raise RecordError(
            "invalid_value", f"workflow: {error}", field="$.workflow", query_id=query.query_id
        ) from None
    with suppress(WorkflowError):  # the generator runs the program again, and ends the workflow
        steps = workflows.asked(query).steps
        searches = [step for step in steps if isinstance(step, Retrieve)]
        if searches:
            return replace(unit, record=search_query(query, searches, now_us))
    admit(replace(unit, record=query), facts)  # what no search takes is refused before it is paid
    waiting = Retrieval(
        query=query,
        source=origin_of(unit.message),
        headers=trace_headers(unit),
        deadline_us=None if query.deadline is None else query.deadline * 1_000,
        revision=1,
        is_final=True,
        index_version=facts.index_version,
        embedding_model=facts.embedding_model,
        hits=(),
        skipped_clusters=(),
        completed_us=now_us,
    )
    output = waiting_output(waiting, stage="grouper", now_us=now_us)
    assert output is not None, "a query is smaller than a retrieval may be"
    return Done(parts=unit.owed, outputs=(output,))

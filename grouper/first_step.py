"""The first step of a workflow: a search goes into a window, a generation to the generator."""

from __future__ import annotations

from dataclasses import replace

from carpool.loop.stage import Done, Unit
from carpool.origins import deadline_us_of, origin_of
from carpool.retrievals import waiting_output
from carpool.workflow.program import Ran
from carpool.workflow.steps import Retrieve, WorkflowError
from carpool.workflow.workflows import Workflows, is_workflow, search_query
from grouper.admission import IndexFacts, admit
from grouper.tracing import trace_headers
from schemas.errors import RecordError
from schemas.query import Query
from schemas.retrieval import Retrieval


def begins_workflow(query: Query) -> bool:
    """Returns whether this is the question of a workflow that has not begun."""
    return is_workflow(query) and query.journal is None


def begun(query: Query, workflows: Workflows) -> Query:
    """Returns the first query of a workflow. Raises `RecordError` for one that cannot begin."""
    try:
        return workflows.begin(query)
    except WorkflowError as error:
        raise RecordError(
            "invalid_value", f"workflow: {error}", field="$.workflow", query_id=query.query_id
        ) from None


def first_step(unit: Unit[Query], ran: Ran, facts: IndexFacts, now_us: int) -> Unit[Query] | Done:
    """Returns the unit with the query to search, or the finished work of one that generates first.

    `unit` has a workflow that was begun, and `ran` is what its program asks for. One whose program
    fails goes to the generator, too, which ends it. Raises `RecordError` for a query that does not
    fit the index.
    """
    query = unit.record
    steps = () if isinstance(ran, WorkflowError) else ran.steps
    searches = [step for step in steps if isinstance(step, Retrieve)]
    if searches:
        return replace(unit, record=search_query(query, searches, now_us))
    admit(unit, facts)  # what no search takes is refused before it is paid
    waiting = Retrieval(
        query=query,
        source=origin_of(unit.message),
        headers=trace_headers(unit),
        deadline_us=deadline_us_of(query, unit.message),
        revision=1,
        is_final=True,
        index_version=facts.index_version,
        embedding_model=facts.embedding_model,
        hits=(),
        skipped_clusters=(),
        completed_us=now_us,
    )
    output = waiting_output(waiting, stage="grouper")
    assert output is not None, "a query is smaller than a retrieval may be"
    return Done(parts=unit.owed, outputs=(output,))

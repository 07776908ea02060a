"""For tests of workflows in the generator: units that wait for a step, and how they end."""

from __future__ import annotations

from typing import Any

from carpool.kafka.records import Output
from carpool.loop.stage import Unit
from carpool.workflow.load import load_workflows
from carpool.workflow.settings import WorkflowSettings
from carpool.workflow.workflows import search_query
from schemas.answer import Answer
from schemas.codec import decode, decode_retrieval
from schemas.query import Journal, Query
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, RETRIES
from tests.generator.stage import Running, unit
from tests.loop import kinds_of_steps
from tests.records import a_query, some_hits

WORKFLOWS = load_workflows(WorkflowSettings(modules=kinds_of_steps.__file__))


def begun(workflow: str = "hyde", tenant: bytes | None = None, **root: Any) -> Unit[Retrieval]:
    """A workflow that waits for the text of its first step. `root`: fields of its query."""
    query = WORKFLOWS.begin(a_query(text="why?", workflow=workflow, **root))
    headers = () if tenant is None else (("rag-tenant", tenant),)
    return unit("why?", found=(), headers=headers, query={"journal": query.journal})


def searched(workflow: str, **more: Any) -> Unit[Retrieval]:
    """A workflow whose first step, a search, has ended. `more`: fields of its retrieval."""
    query = WORKFLOWS.begin(a_query(text="why?", workflow=workflow))
    query = search_query(query, WORKFLOWS.asked(query).steps, now_us=1)
    return unit("why?", query={"journal": query.journal}, **more)


def next_query(output: Output) -> Query:
    """The query of the search that comes next."""
    assert output.topic == RETRIES.name
    return decode(Query, output.value, output.headers)


def next_journal(output: Output) -> Journal:
    """The journal of the next record."""
    if output.topic == RETRIES.name:
        return next_query(output).journal
    return decode_retrieval(output.value, output.headers).query.journal


def ended(run: Running, one: Unit[Retrieval]) -> Answer:
    """Offers a unit, and then each next record, with what its search finds; returns the answer."""
    done = len(run.sink.dones)
    run.offer(one)
    run.wait(lambda: len(run.sink.dones) > done)
    output = run.sink.dones[done].outputs[0]
    if output.topic == ANSWERS.name:
        return decode(Answer, output.value, output.headers)
    journal = next_journal(output)
    hits = some_hits() if journal.began_us else ()
    return ended(run, unit("why?", found=hits, query={"journal": journal}))

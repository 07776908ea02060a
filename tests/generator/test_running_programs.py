"""Workflows whose program waits for its child process: they end early, and count as taken in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from carpool.loop.stage import Unit
from carpool.workflow.load import load_workflows
from carpool.workflow.settings import WorkflowSettings
from schemas.retrieval import Retrieval
from tests.generator.memory_llm import MemoryLlm
from tests.generator.stage import Running, running, unit
from tests.records import a_query
from tests.workflow import hostile

WORKFLOWS = load_workflows(WorkflowSettings(modules=hostile.__file__))


def begun(workflow: str, **root: object) -> Unit[Retrieval]:
    query = WORKFLOWS.begin(a_query(text="why?", workflow=workflow, **root))
    return unit("why?", found=(), query={"journal": query.journal, "deadline": query.deadline})


@pytest.fixture
def run() -> Iterator[Running]:
    """A stage whose child process is busy with a program that does not end."""
    with running(MemoryLlm(), workflows=WORKFLOWS) as run:
        run.offer(begun("counts"))
        yield run


def statuses(run: Running, count: int) -> list[str]:
    return [answer.status for answer in run.wait_for_answers(count)]


def test_a_deadline_that_passes_before_a_program_runs_ends_its_workflow(run: Running) -> None:
    run.offer(begun("good", deadline=run.clock.now_us() // 1_000 + 100))
    run.clock.sleep(200_000)
    run.tick()
    assert [answer.status for answer in run.sink.answers] == ["expired"]
    assert statuses(run, 2) == ["expired", "failed"]


def test_a_late_workflow_does_not_run_its_program(run: Running) -> None:
    run.offer(begun("counts", deadline=run.clock.now_us() // 1_000 - 1))
    assert [answer.status for answer in run.sink.answers] == ["expired"]


def test_a_workflow_that_is_withdrawn_before_its_program_runs_is_cancelled(run: Running) -> None:
    one = begun("good")
    run.offer(one)
    run.stage.cancel(one.id)
    assert [answer.status for answer in run.sink.answers] == ["cancelled"]
    assert statuses(run, 2) == ["cancelled", "failed"]


def test_a_workflow_that_is_revoked_before_its_program_runs_has_no_answer(run: Running) -> None:
    one, other = begun("good"), begun("good")
    run.offer(one, other)
    run.stage.revoke(frozenset({one.id}), frozenset())
    run.wait(lambda: len(run.sink.dones) == 2)
    assert one.id not in {done.parts[0][0] for done in run.sink.dones}


def test_running_programs_count_as_taken_in(run: Running) -> None:
    before = run.stage.credit()
    one = begun("good")
    run.offer(one)
    after = run.stage.credit()
    assert after.records == before.records - 1
    assert after.size_bytes == before.size_bytes - one.message.size_bytes

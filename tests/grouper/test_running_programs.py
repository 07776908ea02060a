"""Workflows whose program waits for its child process, in the grouper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.workflow.load import load_workflows
from carpool.workflow.settings import WorkflowSettings
from schemas.answer import Answer
from schemas.codec import EVENT_TYPES, decode_retrieval
from schemas.record import header
from schemas.retrieval import Retrieval
from schemas.topics import RETRIEVALS
from tests.grouper.stage import Rig, running
from tests.waiting import wait_until
from tests.workflow import hostile

WORKFLOWS = load_workflows(WorkflowSettings(modules=hostile.__file__))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A stage whose child process is busy with a program that does not end."""
    with running(tmp_path, workflows=WORKFLOWS) as rig:
        rig.offer("why?", workflow="counts")
        yield rig


def written(rig: Rig, count: int) -> dict[str, list[str]]:
    """The ids of the queries in all groups, and in the records of each topic, without groups."""

    def are_done() -> bool:
        rig.tick()
        return len(rig.sink.acknowledged) >= count

    wait_until(are_done)
    outputs = [output for done in rig.sink.dones for output in done.outputs]
    found = {
        kind: [
            (output.key or b"").decode()
            for output in outputs
            if header(output.headers, "ce_type") == EVENT_TYPES[each].encode()
        ]
        for kind, each in (("answers", Answer), ("waiting", Retrieval))
    }
    queries = (one.query for group in rig.sink.groups for one in group.queries)
    return found | {"groups": [query.query_id for query in queries]}


def test_good_programs_are_searched_and_a_hostile_one_goes_to_the_generator(rig: Rig) -> None:
    rig.offer("a", "b", workflow="good")
    ids = written(rig, 3)
    assert ids == {"groups": ["q-2", "q-3"], "waiting": ["q-1"], "answers": []}
    (waiting,) = [o for done in rig.sink.dones for o in done.outputs if o.topic == RETRIEVALS.name]
    found = decode_retrieval(waiting.value, waiting.headers)
    assert found.query is not None and found.query.journal is not None


def test_a_deadline_that_passes_before_a_program_runs_ends_its_query(rig: Rig) -> None:
    rig.offer("a", workflow="good", deadline=rig.clock.time_us // 1_000 + 100)
    rig.clock.sleep(200_000)
    rig.tick()
    assert written(rig, 2)["answers"] == ["q-2"]


def test_a_query_that_is_revoked_before_its_program_runs_is_forgotten(rig: Rig) -> None:
    (one, _) = rig.offer("a", "b", workflow="good")
    before = rig.stage.credit().records
    rig.stage.revoke(frozenset({one.id}), frozenset())
    assert rig.stage.credit().records == before + 1
    assert written(rig, 2)["groups"] == ["q-3"]


def test_a_query_that_is_late_when_it_is_read_runs_no_program(rig: Rig) -> None:
    rig.offer("a", workflow="counts", deadline=rig.clock.time_us // 1_000 - 1)
    rig.tick()
    assert [one.parts[0][0] for one in rig.sink.dones] == [2]

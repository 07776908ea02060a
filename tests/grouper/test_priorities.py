"""Two priority classes in the grouper: windows of their own, the urgent ones before those that are
closed already.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from grouper import service
from schemas.answer import Answer
from schemas.codec import decode
from schemas.group import Group
from schemas.query import Journal
from schemas.topics import GROUPS, GROUPS_BATCH, QUERIES, QUERIES_BATCH, RETRIEVALS, Topic
from schemas.workflow import StepResult
from tests.clocks import NOW_US
from tests.grouper.stage import AHEAD, Gate, GatePolicy, Rig, prepared, running
from tests.records import a_query
from tests.waiting import wait_until


def offer(rig: Rig, topic: Topic, *texts: str, **more: Any) -> list[int]:
    return [unit.id for unit in rig.offer(*texts, topic=topic.name, **more)]


def left(rig: Rig) -> list[tuple[str, list[int]]]:
    return [
        (output.topic, [unit_id for unit_id, _ in done.parts])
        for done in rig.sink.dones
        for output in done.outputs
    ]


def test_each_class_has_windows_and_a_topic_of_its_own(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        batch = offer(rig, QUERIES_BATCH, "ada", "bell")
        urgent = offer(rig, QUERIES, "ada")
        rig.tick()
        rig.settled(3)
        assert sorted(left(rig)) == [(GROUPS_BATCH.name, batch), (GROUPS.name, urgent)]
        outputs = [output for done in rig.sink.dones for output in done.outputs]
        sequences = [decode(Group, output.value, output.headers).sequence for output in outputs]
        assert sequences == [0, 0], "each topic has lanes of its own"


def test_an_urgent_query_leaves_before_windows_that_are_closed_already_and_waits_for_nobody(
    tmp_path: Path,
) -> None:
    policy = GatePolicy()
    with running(tmp_path, settings=AHEAD, policy=policy) as rig:
        batch = offer(rig, QUERIES_BATCH, *["ada"] * 16)
        rig.tick(waiting=1_000)
        wait_until(lambda: policy.windows == 1 and prepared(rig) == 3)
        urgent = offer(rig, QUERIES, "bell")
        rig.tick(waiting=1_000)
        wait_until(lambda: prepared(rig) == 4)
        rig.stage.check_integrity()
        policy.opened.release(9)
        rig.settled(17)
        assert [ids for _, ids in left(rig)] == [
            batch[:4],
            urgent,
            batch[4:8],
            batch[8:12],
            batch[12:],
        ]


def test_an_urgent_query_waits_for_no_records_that_may_be_batch_while_those_came_lately(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as rig:
        offer(rig, QUERIES_BATCH, "ada")
        rig.tick()
        rig.settled(1)
        urgent = offer(rig, QUERIES, "bell")
        rig.tick(waiting=1_000)
        rig.settled(2)
        assert left(rig)[-1] == (GROUPS.name, urgent)


def test_under_a_lasting_load_of_urgent_ones_the_others_get_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "INTERACTIVE_WEIGHT", 2)
    settings = msgspec.structs.replace(AHEAD, horizon_windows=0)
    gate = Gate()
    with running(tmp_path, settings=settings, embedder=gate) as rig:
        offer(rig, QUERIES, *["ada"] * 40)
        offer(rig, QUERIES_BATCH, *["bell"] * 8)
        gate.opened.release(99)
        rig.tick()
        rig.settled(48)
        topics = [topic for topic, _ in left(rig)]
        assert GROUPS_BATCH.name in topics[:6], "two windows in its turn, and two that overtake it"
        assert topics[-2:] == [GROUPS.name] * 2


def test_what_expires_where_it_gathers_or_is_read_ahead_is_answered_at_the_next_tick(
    tmp_path: Path,
) -> None:
    gate, policy = Gate(), GatePolicy()
    soon = NOW_US // 1_000 + 5
    with running(tmp_path, settings=AHEAD, policy=policy, embedder=gate) as rig:
        offer(rig, QUERIES, *["ada"] * 4)
        gate.opened.release()
        rig.tick(waiting=9)
        wait_until(lambda: policy.windows == 1)
        embedding = offer(rig, QUERIES, *["bell"] * 4, deadline=soon)
        rig.tick(waiting=9)
        wait_until(lambda: len(gate.batches) == 2)
        gathered = offer(rig, QUERIES, "curie", deadline=soon)
        assert rig.tick(waiting=9) == soon * 1_000
        rig.clock.time_us += 5_000
        rig.tick(waiting=9)
        answers = [
            decode(Answer, output.value, output.headers)
            for done in rig.sink.dones
            for output in done.outputs
            if output.topic == RETRIEVALS.name
        ]
        assert [answer.status for answer in answers] == ["expired"] * 5, (
            "although the model and the plan are stuck"
        )
        assert sorted(rig.sink.acknowledged) == sorted(embedding + gathered)
        rig.stage.check_integrity()
        gate.opened.release(9)
        policy.opened.release(9)
        rig.settled(9)
        assert len(rig.sink.acknowledged) == 9, "nobody was answered twice"


HEAVY, LIGHT = ((("rag-tenant", name),) for name in (b"heavy", b"light"))
BEGUN = Journal(
    root=a_query(),
    program="hyde",
    version=1,
    digest="d",
    rounds=((StepResult(digest="d", text="A guess."),),),
)


@pytest.mark.parametrize(
    "more",
    [{"headers": LIGHT}, {"headers": HEAVY, "journal": BEGUN}],
    ids=["another tenant", "a workflow that has begun"],
)
def test_a_backlog_does_not_keep_another_tenant_or_a_workflow_out_of_the_next_window(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    policy = GatePolicy()
    settings = msgspec.structs.replace(AHEAD, horizon_windows=0)
    with running(tmp_path, settings=settings, policy=policy) as rig:
        heavy = offer(rig, QUERIES, *["ada"] * 20, headers=HEAVY)
        rig.tick()
        wait_until(lambda: policy.windows == 1)
        other = offer(rig, QUERIES, "bell", **more)
        rig.tick()
        policy.opened.release(99)
        rig.settled(21)
        assert [ids for _, ids in left(rig)][:2] == [heavy[:4], [*heavy[4:7], *other]]

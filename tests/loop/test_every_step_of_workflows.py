"""A kill before every step of the loop, at every step of a workflow: no finished step runs again.

One workflow is in flight, so the records that a service takes are numbered: the kill before a step
of the loop comes after so many were taken.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from schemas.topics import ANSWERS
from tests.e2e.support import build_index, question
from tests.loop.paid_calls import Call, PaidCalls, committed, use
from tests.loop.pipeline import Pipeline
from tests.loop.test_every_step import AGAIN
from tests.rig.steps import Steps, silent_deaths

RECORDS = {
    "every_kind": {"grouper": 3, "searcher": 3, "generator": 6},
    "text_first": {"grouper": 2, "searcher": 1, "generator": 3},
    "search_first": {"grouper": 1, "searcher": 1, "generator": 1},
}
"""How many records each service takes in a run of a program."""
OFTEN = (*AGAIN, "in_flight.committed")
"""Steps of the loop that each record takes."""
QUICK = ("stage.offer", "sink.done", "producer.produce", "producer.commit", "in_flight.committed")
"""Of these, those that the quick tests take."""
TO_TAKE = ("consumer.poll", "in_flight.take", "stage.offer")
"""Of these, those that come before a record is counted as taken."""
TAKEN = [
    (program, taken) for program, of in RECORDS.items() for taken in range(max(of.values()) + 1)
]


def kills() -> Iterator[Any]:
    """Yields (services, program, taken, step): all services in one run, each by itself in a night.

    Of all services, those are killed that come to this step.
    """
    for (program, taken), step in itertools.product(TAKEN, OFTEN):
        come = [
            name
            for name, records in RECORDS[program].items()
            if taken <= records - (step in TO_TAKE)
        ]
        for killed in (come, *([name] for name in come if len(come) > 1)) if come else ():
            is_quick = killed == come and step in QUICK
            marks = () if is_quick else pytest.mark.long
            name = f"{' '.join(killed)} {program} {taken} {step}"
            yield pytest.param(killed, program, taken, step, marks=marks, id=name)


class KillAt(Steps):
    """Kills before the first step of a name after so many records were offered to the stage."""

    def __init__(self, step: str, *, taken: int) -> None:
        super().__init__()
        self._step, self._offered = step, taken

    def take(self, name: str) -> None:
        if name == self._step and self.taken["stage.offer"] >= self._offered:
            self._kill_before, self._nth = name, self.taken[name] + 1
        super().take(name)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run left: the answer, committed records, and the turns of each paid call."""

    answer: Any
    records: Counter[tuple[str, str, int]]
    turns: dict[Call, Counter[int]]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_index(tmp_path_factory.mktemp("kinds"), documents=60, nlist=4)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> PaidCalls:
    return use(monkeypatch)


def ask(index: Path, model: PaidCalls, program: str, steps: dict[str, Steps]) -> Pipeline:
    model.turns.clear()
    pipeline = Pipeline(index, steps)
    body = {"query_id": "one", "text": question(random.Random(4)), "workflow": program}
    pipeline.publish(body)
    return pipeline


def outcome(pipeline: Pipeline, model: PaidCalls) -> Outcome:
    pipeline.turn(until=lambda: bool(pipeline.answered()))
    pipeline.stop()
    (answer,) = [json.loads(each.value or b"") for each in pipeline.broker.records(ANSWERS.name)]
    said = answer["status"], answer["answer"], [one["text"] for one in answer["steps"]]
    return Outcome(
        answer=(said, [hit["id"] for hit in answer["retrieved"]]),
        records=Counter(committed(pipeline.broker)),
        turns={call: Counter(turns) for call, turns in model.turns.items()},
    )


@pytest.fixture(scope="module")
def undisturbed(index: Path) -> dict[str, Outcome]:
    with pytest.MonkeyPatch.context() as patch:
        model = use(patch)
        found = {name: outcome(ask(index, model, name, {}), model) for name in RECORDS}
    for name, each in found.items():
        assert each.answer[0][0] == "ok", each.answer
        assert set(each.records.values()) == {1}, "no step has two records"
        assert all(turns.total() == 1 for turns in each.turns.values()), "no call is paid twice"
        taken = Counter(topic for _, topic, _ in each.records)
        assert taken["rag.groups.v1"] == RECORDS[name]["searcher"]
        assert taken["rag.retrievals.v1"] == RECORDS[name]["generator"]
    return found


def check(found: Outcome, wanted: Outcome, takeovers: int) -> None:
    """Checks that only calls of the record in flight were paid again, once for each takeover."""
    assert found.answer == wanted.answer
    assert found.records == wanted.records
    assert found.turns.keys() == wanted.turns.keys()
    assert all(turns.keys() == wanted.turns[call].keys() for call, turns in found.turns.items()), (
        "a call whose result was committed came again"
    )
    again = [turns for turns in found.turns.values() if turns.total() > 1]
    assert all(turns.total() <= 1 + takeovers for turns in again)
    assert len({turn for turns in again for turn in turns}) <= takeovers


@pytest.mark.parametrize(("killed", "program", "taken", "step"), list(kills()))
def test_a_kill_repeats_no_finished_step_of_a_workflow(
    index: Path,
    model: PaidCalls,
    undisturbed: dict[str, Outcome],
    killed: list[str],
    program: str,
    taken: int,
    step: str,
) -> None:
    with silent_deaths():
        pipeline = ask(index, model, program, {name: KillAt(step, taken=taken) for name in killed})
        found = outcome(pipeline, model)
    assert pipeline.kills == len(killed), f"not all of {killed} came to {step}"
    check(found, undisturbed[program], takeovers=1)


@pytest.mark.parametrize(("program", "taken"), TAKEN)
def test_a_takeover_repeats_no_finished_step_of_a_workflow(
    index: Path, model: PaidCalls, undisturbed: dict[str, Outcome], program: str, taken: int
) -> None:
    generator = Steps()
    pipeline = ask(index, model, program, {"generator": generator})
    pipeline.turn(until=lambda: generator.taken["stage.offer"] >= taken)
    pipeline.rebalance()
    check(outcome(pipeline, model), undisturbed[program], takeovers=2)

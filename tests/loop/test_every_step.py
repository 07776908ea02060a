"""A kill before every step of each service: the answers are those of a run without kills."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.support import build_index, question
from tests.loop.pipeline import SERVICES, Answered, Pipeline
from tests.rig.steps import Steps, silent_deaths

STEPS = (
    "consumer.subscribe",
    "consumer.poll",
    "consumer.pause",
    "consumer.close",
    "loop.assigned",
    "loop.revoked",
    "in_flight.assign",
    "in_flight.take",
    "in_flight.revoke",
    "in_flight.complete",
    "in_flight.committed",
    "stage.start",
    "stage.assigned",
    "stage.offer",
    "stage.tick",
    "stage.revoke",
    "stage.drain",
    "stage.close",
    "sink.done",
    "producer.start",
    "producer.begin",
    "producer.produce",
    "producer.send_offsets",
    "producer.abort",
    "producer.commit",
    "producer.close",
)
"""As in `tests.rig.steps`, less what only at-least-once does, and `refuse` and `hint`, which
end in `done` or nowhere.
"""
AGAIN = (
    "consumer.poll",
    "in_flight.take",
    "in_flight.complete",
    "stage.offer",
    "stage.tick",
    "sink.done",
    "producer.begin",
    "producer.produce",
    "producer.send_offsets",
    "producer.commit",
)
"""Steps that every run takes often."""
QUERIES = 8


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_index(tmp_path_factory.mktemp("steps"), documents=60, nlist=4)


def run(index: Path, steps: dict[str, Steps]) -> tuple[Counter[Answered], Pipeline]:
    """Asks in three helpings: one that meets an aborted transaction in every service, one in the
    middle of a rebalance.
    """
    rng = random.Random(3)
    bodies = [{"query_id": f"q-{number}", "text": question(rng)} for number in range(QUERIES)]
    pipeline = Pipeline(index, steps)

    def has(count: int) -> bool:
        return sum(pipeline.answered().values()) >= count

    pipeline.aborts += ["grouper", "searcher", "generator"]
    pipeline.publish(*bodies[:3], b'{"query_id": "q-bad", "top_k": "many"}')
    pipeline.turn(lambda: has(4) and not pipeline.aborts)
    pipeline.publish(*bodies[3:6])
    pipeline.rebalance()
    pipeline.turn(lambda: has(7))
    pipeline.publish(*bodies[6:])
    pipeline.turn(lambda: has(9))
    pipeline.stop()
    return pipeline.answered(), pipeline


@pytest.fixture(scope="module")
def undisturbed(index: Path) -> Counter[Answered]:
    answered, pipeline = run(index, {})
    assert pipeline.kills == 0
    assert sorted(answered.values()) == [1] * (QUERIES + 1)
    return answered


EVERY_STEP = pytest.mark.parametrize(
    ("step", "nth"),
    [
        *((step, 1) for step in STEPS),
        *(pytest.param(step, 2, marks=pytest.mark.long) for step in AGAIN),
    ],
    ids=lambda value: str(value),
)


@EVERY_STEP
@pytest.mark.parametrize(
    "killed",
    [tuple(SERVICES), *(pytest.param((name,), marks=pytest.mark.long) for name in SERVICES)],
    ids=" ".join,
)
def test_a_kill_before_a_step_loses_nothing_and_repeats_nothing(
    index: Path, undisturbed: Counter[Answered], killed: tuple[str, ...], step: str, nth: int
) -> None:
    """Of all services in one run, each by itself in a night."""
    with silent_deaths():
        answered, pipeline = run(index, {service: Steps(step, nth=nth) for service in killed})
    assert pipeline.kills == len(killed), f"not all of {killed} came to {step}"
    assert answered == undisturbed

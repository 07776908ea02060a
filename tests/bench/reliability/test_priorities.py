"""Whether others wait: each promise can break, and a small run on a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from bench.core.accounting import account
from bench.core.spread import spread
from bench.reliability.cli import PrioritiesOptions
from bench.reliability.priorities import (
    ConditionResult,
    PrioritiesResult,
    run,
)

ONE_ANSWER = "each question has one answer"


def condition(name: str, *times_ms: float) -> ConditionResult:
    ids = [str(number) for number in range(len(times_ms))]
    return ConditionResult(condition=name, total_ms=spread(times_ms), accounting=account(ids, ids))


RESULT = PrioritiesResult(
    interactive_alone=condition("alone", 10, 10),
    interactive_beside_batch=condition("beside batch", 20, 20),
    batch=condition("batch", 500),
    batch_left=1,
    batch_per_s=50.0,
    quiet_tenant_alone=condition("quiet tenant alone", 10, 10),
    quiet_tenant_beside_loud=condition("quiet tenant beside a loud one", 15, 15),
    loud_tenant=condition("loud tenant", 30),
)
TWICE = replace(RESULT.batch, accounting=account(["a"], ["a", "a"]))


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, None),
        (
            {"interactive_beside_batch": condition("beside batch", 21, 21)},
            "interactive p99 beside batch at most 2x",
        ),
        (
            {"interactive_beside_batch": condition("beside batch")},
            "interactive p99 beside batch at most 2x",
        ),
        (
            {"quiet_tenant_beside_loud": condition("beside", 16, 16)},
            "other tenants' p99 beside a loud one at most 1.5x",
        ),
        ({"batch_left": 0}, "batch questions were waiting all the time"),
        ({"batch": TWICE}, ONE_ANSWER),
    ],
)
def test_each_promise_breaks_by_itself(changes: dict[str, object], broken: str | None) -> None:
    promises = replace(RESULT, **changes).promises()
    assert len(promises) == 4
    assert [name for name, is_kept in promises.items() if not is_kept] == [broken] * bool(broken)


@pytest.mark.kafka
@pytest.mark.long
def test_a_small_run_answers_each_question_once_in_every_condition(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    path = tmp_path / "priorities.json"
    options = PrioritiesOptions(
        bootstrap=kafka_bootstrap,
        work=tmp_path,
        batch=60,
        rate_per_s=10,
        tenant_rate_per_s=10,
        duration_s=2,
        warm_up_s=1,
        seed=3,
        json_file=path,
    )
    run(options)
    report = json.loads(path.read_text())
    assert report["promises"][ONE_ANSWER]
    results = report["results"]
    assert results["batch"]["accounting"]["published"] == 60
    assert results["loud_tenant"]["accounting"]["published"] == 18
    assert results["quiet_tenant_beside_loud"]["accounting"]["published"] == 2
    assert results["interactive_alone"]["total_ms"]["count"] == 20

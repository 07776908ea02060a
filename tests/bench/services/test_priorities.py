"""Whether others wait: each promise can break, and a small run on a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from bench.core.accounting import account
from bench.core.spread import spread
from bench.services.options import PrioritiesOptions
from bench.services.priorities import LLM_SLOWDOWN_MAX, ConditionResult, promises_of, run

ONE_ANSWER = "each question has one answer"


def condition(*times_ms: float) -> ConditionResult:
    ids = [str(number) for number in range(len(times_ms))]
    return ConditionResult(total_ms=spread(times_ms), accounting=account(ids, ids))


CONDITIONS = {
    "interactive alone": condition(10, 10),
    "interactive with batch": condition(20, 20),
    "batch": condition(500),
    "quiet tenant alone": condition(10, 10),
    "quiet tenant with a loud one": condition(15, 15),
    "loud tenant": condition(30),
}
TWICE = replace(condition(1), accounting=account(["a"], ["a", "a"]))


@pytest.mark.parametrize(
    ("changes", "batch_left", "broken"),
    [
        ({}, 1, None),
        (
            {"interactive with batch": condition(21, 21)},
            1,
            "interactive p99 with batch at most 2x",
        ),
        ({"interactive with batch": condition()}, 1, "interactive p99 with batch at most 2x"),
        (
            {"quiet tenant with a loud one": condition(16, 16)},
            1,
            "other tenants' p99 with a loud one at most 1.5x",
        ),
        ({}, 0, "batch questions were waiting all the time"),
        ({"batch": TWICE}, 1, ONE_ANSWER),
    ],
)
def test_each_promise_breaks_by_itself(
    changes: dict[str, ConditionResult], batch_left: int, broken: str | None
) -> None:
    promises = promises_of(CONDITIONS | changes, batch_left)
    assert len(promises) == 4
    assert [name for name, is_kept in promises.items() if not is_kept] == [broken] * bool(broken)


def test_with_an_llm_and_without_tenants_a_batch_may_slow_others_less() -> None:
    conditions = dict(list(CONDITIONS.items())[:3])
    assert list(promises_of(conditions, 1, LLM_SLOWDOWN_MAX).values()) == [False, True, True]


@pytest.mark.kafka
@pytest.mark.long
def test_a_small_run_answers_each_question_once_in_every_condition(tmp_path: Path) -> None:
    path = tmp_path / "priorities.json"
    options = PrioritiesOptions(
        work=tmp_path,
        batch=60,
        tenant_rate_per_s=10,
        seconds=2,
        warm_up_s=1,
        json_file=path,
    )
    run(options)
    report = json.loads(path.read_text())
    assert report["promises"][ONE_ANSWER]
    found = report["results"]["conditions"]
    published = [each["accounting"]["published"] for each in found.values()]
    assert published == [40, 40, 60, 2, 2, 18]
    assert found["interactive alone"]["total_ms"]["count"] == 40

"""Whether others wait: promises that can break, figures that are told, and a whole run on a small
scale.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.core.accounting import close_books
from bench.core.spread import spread
from bench.reliability.priorities import (
    Asking,
    PrioritiesOptions,
    PrioritiesResult,
    lines,
    made_up_index,
    run_priorities,
)

INTERACTIVE = "interactive p99 beside batch at most 2x"
TENANTS = "other tenants' p99 beside a loud one at most 1.5x"
WAITING = "batch questions were waiting all the time"
ONE_ANSWER = "each question has one answer"


def asking(condition: str, *times_ms: float) -> Asking:
    ids = [str(number) for number in range(len(times_ms))]
    return Asking(
        condition=condition,
        total_ms=spread(times_ms),
        stages_ms={},
        books=close_books(ids, ids, {}),
    )


RESULT = PrioritiesResult(
    interactive_alone=asking("alone", 10, 10),
    interactive_beside_batch=asking("beside batch", 20, 20),
    batch=asking("batch", 500),
    batch_left=1,
    batch_per_s=50.0,
    quiet_tenants_alone=asking("other tenants alone", 10, 10),
    quiet_tenants_beside_loud=asking("other tenants beside a loud one", 15, 15),
    loud_tenant=asking("loud tenant", 30),
)


def broken(**changes: object) -> set[str]:
    promises = msgspec.structs.replace(RESULT, **changes).promises
    return {name for name, held in promises.items() if not held}


def test_at_its_bounds_everything_holds() -> None:
    assert set(RESULT.promises) == {INTERACTIVE, TENANTS, WAITING, ONE_ANSWER}
    assert broken() == set()


def test_each_promise_breaks_by_itself() -> None:
    assert broken(interactive_beside_batch=asking("beside batch", 21, 21)) == {INTERACTIVE}
    assert broken(quiet_tenants_beside_loud=asking("beside", 16, 16)) == {TENANTS}
    assert broken(batch_left=0) == {WAITING}
    twice = msgspec.structs.replace(RESULT.batch, books=close_books(["a"], ["a", "a"], {}))
    assert broken(batch=twice) == {ONE_ANSWER}


def test_where_nothing_came_back_nothing_is_promised() -> None:
    nothing = asking("beside batch")
    assert nothing.total_ms is None
    assert INTERACTIVE in broken(interactive_beside_batch=nothing)
    assert any(
        "none came back" in line for line in lines(msgspec.structs.replace(RESULT, batch=nothing))
    )


def test_the_table_names_every_condition_and_what_broke() -> None:
    told = "\n".join(lines(msgspec.structs.replace(RESULT, batch_left=0)))
    for name in (
        "alone",
        "beside batch",
        "other tenants alone",
        "other tenants beside a loud one",
        "loud tenant",
    ):
        assert name in told
    assert f"BROKEN  {WAITING}" in told
    assert f"held    {INTERACTIVE}" in told


@pytest.mark.kafka
@pytest.mark.timeout(180)
def test_a_small_run_answers_each_question_once_in_every_condition(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    options = PrioritiesOptions(
        batch=60,
        rate_per_s=10,
        tenant_rate_per_s=10,
        loud_share=0.9,
        duration_s=2,
        warm_up_s=1,
        seed=3,
    )
    index = made_up_index(tmp_path / "index")
    report = run_priorities(options, kafka_bootstrap, index, tmp_path / "run", {}, lambda *_: None)
    assert report.promises[ONE_ANSWER]
    assert report.results.batch.books.published == 60
    assert report.results.loud_tenant.books.published == 18
    assert report.results.quiet_tenants_beside_loud.books.published == 2
    assert report.results.interactive_alone.stages_ms["total"].count == 20

"""Overhead in small, from end to end: a real broker, the shipped services, bare hops beside them,
both deliveries.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.services.overhead import command
from bench.services.overhead.contestants import CONTESTANTS
from bench.services.overhead.outcome import STAGES

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_short_load_is_answered_once_and_told_by_stage_commit_and_process_beside_bare_hops(
    tmp_path: Path,
) -> None:
    report = tmp_path / "overhead.json"
    on_one_broker = [each for each in CONTESTANTS if each.brokers == 1]
    options = command.Options(
        rate_per_s=20,
        seconds=4,
        warm_up_s=1,
        rounds=1,
        settings=(),
        contestants=tuple(each.short_name for each in on_one_broker),
    )
    command.run(options, tmp_path, report)
    found = json.loads(report.read_text())
    assert [each["contestant"]["name"] for each in found["results"]] == [
        each.name for each in on_one_broker
    ]
    for each in found["results"]:
        for side, processes in (
            ("carpool", {"grouper", "searcher", "generator"}),
            ("bare", {"hop 1", "hop 2", "hop 3"}),
        ):
            measured = each[side]
            assert [(books["published"], books["answered"]) for books in measured["books"]] == [
                (40, 40),
                (40, 40),
            ]
            assert list(measured["stages_ms"]) == list(STAGES)
            assert measured["stages_ms"]["total"]["count"] == 80
            assert processes | {"broker 1", "benchmark"} == measured["cpu_s"].keys()
            assert len(measured["machine"]) == 2
        # Those of the load before it and of the other turn, and the question that opened the hops.
        assert [books["foreign"] for books in each["carpool"]["books"]] == [20, 60]
        assert [books["foreign"] for books in each["bare"]["books"]] == [21, 61]
        assert {"grouper ok", "searcher ok", "generator ok"} <= each["carpool"][
            "commits_per_s"
        ].keys()
        assert each["ratio"].keys() == {"p50", "p99", "cpu"}
    # The times are for the benchmark: on a busy machine they say nothing.
    broken = [promise for promise, held in found["promises"].items() if not held]
    assert not [promise for promise in broken if "one answer" in promise or "copied" in promise]

"""Overhead in small, from end to end: a real broker, the shipped services, both deliveries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.overhead import command
from bench.overhead.outcome import CONTESTANTS, STAGES

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_short_load_is_answered_once_and_told_by_stage_commit_and_process(tmp_path: Path) -> None:
    report = tmp_path / "overhead.json"
    options = command.Options(rate_per_s=20, seconds=3, warm_up_s=1, rounds=1, settings=())
    on_one_broker = [each for each in CONTESTANTS if each.brokers == 1]
    command.run(options, tmp_path, report, on_one_broker)
    found = json.loads(report.read_text())
    assert [each["contestant"]["name"] for each in found["results"]] == [each.name for each in on_one_broker]
    for each in found["results"]:
        assert each["books"] == [
            {
                "published": 60,
                "answered": 60,
                "missing": 0,
                "duplicates": 0,
                "foreign": 20,  # the warm-up's
                "other": {},
                "missing_ids": [],
            }
        ]
        assert list(each["stages_ms"]) == list(STAGES)
        assert each["stages_ms"]["total"]["count"] == 60
        assert {"grouper ok", "searcher ok", "generator ok"} <= each["commits_per_s"].keys()
        assert {"grouper", "searcher", "generator", "broker 1", "benchmark"} == each["cpu_s"].keys()
    # The times are for the benchmark: on a busy machine they say nothing.
    broken = [promise for promise, held in found["promises"].items() if not held]
    assert not [promise for promise in broken if "one answer" in promise]

"""The rebalance benchmark in small, from end to end: a real broker, members that come, go and are
killed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.reliability.rebalance import command

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(400)]


def test_each_change_and_each_kill_is_told_with_what_stayed_and_what_moved(tmp_path: Path) -> None:
    report = tmp_path / "rebalance.json"
    options = command.Options(rate_per_s=60, phase_s=3, rounds=1, warm_up=0, kills=1, settings=())
    command.run(options, tmp_path, report)
    found = json.loads(report.read_text())
    results = found["results"]
    assert [each["change"]["what"] for each in results["pauses"]] == [
        "generator-2 comes",
        "generator-3 comes",
        "generator-3 goes",
        "generator-2 goes",
    ]
    (kill,) = results["kills"]
    assert kill["partitions"]
    assert [list(each) for each in results["takeovers_s"]] == [
        [str(each) for each in kill["partitions"]]
    ]
    # The times are for the benchmark: on a busy machine they say nothing.
    assert [held for promise, held in found["promises"].items() if promise.startswith("no ")] == [
        True,
        True,
    ]

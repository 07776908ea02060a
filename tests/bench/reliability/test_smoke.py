"""Chaos and rebalance from end to end, small, on real brokers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.reliability.chaos import command as chaos
from bench.reliability.cli import ChaosOptions, RebalanceOptions
from bench.reliability.rebalance import command as rebalance

pytestmark = [pytest.mark.kafka, pytest.mark.long]


def test_faults_of_processes_and_network_lose_and_repeat_nothing(tmp_path: Path) -> None:
    report = tmp_path / "chaos.json"
    options = ChaosOptions(
        queries=300, kills=4, network=3, states=4, minutes=0.75, work=tmp_path, json_file=report
    )
    chaos.run(options)
    found = json.loads(report.read_text())
    broken = [promise for promise, is_kept in found["promises"].items() if not is_kept]
    # On a busy machine a fault may find no work in flight, and does not count then.
    assert [promise for promise in broken if "each with work in flight" not in promise] == []
    audit = found["results"]["run"]["audit"]
    assert (audit["published"] - audit["replays"], audit["lost"]) == (300, 0)
    assert set(audit["duplicates"].values()) == {0}
    assert audit["answers"]["reused"] > 0 and audit["answers"]["cancelled"] > 0
    assert found["results"]["run"]["injected"]
    assert found["results"]["in_transaction"] >= 1


def test_each_change_and_each_kill_is_reported_with_its_partitions(tmp_path: Path) -> None:
    report = tmp_path / "rebalance.json"
    options = RebalanceOptions(
        rate_per_s=60, phase_s=3, rounds=1, warm_up=0, kills=1, work=tmp_path, json_file=report
    )
    rebalance.run(options)
    found = json.loads(report.read_text())
    results = found["results"]
    assert [each["change"]["what"] for each in results["pauses"]] == [
        "generator-2 joins",
        "generator-3 joins",
        "generator-3 leaves",
        "generator-2 leaves",
    ]
    (kill,) = results["kills"]
    assert kill["partitions"]
    assert [list(each) for each in results["takeovers_s"]] == [list(map(str, kill["partitions"]))]
    # Times depend on the machine; the accounting does not.
    kept = [is_kept for name, is_kept in found["promises"].items() if name.startswith("no ")]
    assert kept == [True, True]

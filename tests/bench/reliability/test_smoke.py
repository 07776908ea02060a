"""Chaos and torn from end to end, small, on real brokers; and promises that break."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bench.reliability import torn
from bench.reliability.chaos import command as chaos
from bench.reliability.options import ChaosOptions, TornOptions
from bench.reliability.torn import TornResult

KAFKA = (pytest.mark.kafka, pytest.mark.long)


def broken(promises: dict[str, bool]) -> list[str]:
    return [promise for promise, is_kept in promises.items() if not is_kept]


def marked(function: Any) -> Any:
    for mark in KAFKA:
        function = mark(function)
    return function


@marked
def test_faults_of_processes_and_network_lose_and_repeat_nothing(tmp_path: Path) -> None:
    report = tmp_path / "chaos.json"
    options = ChaosOptions(
        queries=300, kills=4, network=3, states=4, minutes=0.75, work=tmp_path, json_file=report
    )
    chaos.run(options)
    found = json.loads(report.read_text())
    # On a busy machine a fault may find no work in flight, and does not count then.
    assert [each for each in broken(found["promises"]) if "with work in flight" not in each] == []
    audit = found["results"]["audit"]
    assert audit["published"] - audit["replays"] == 300
    assert set(audit["wrong"].values()) == {0}
    assert audit["reused"] > 0 and audit["cancelled"] > 0
    assert found["results"]["kills_in_transaction"] >= 1


@marked
def test_delayed_ends_of_transactions_lose_and_repeat_nothing(tmp_path: Path) -> None:
    assert torn.run(TornOptions(ends=6, kills=2, brokers=1, work=tmp_path))


TORN = TornResult(delayed=2, killed=1, published=9, lost=0, twice=0, took_s=1.0)


@pytest.mark.parametrize(
    ("found", "promise"),
    [
        (torn.promises(TORN, 2), ""),
        (torn.promises(TORN, 3), "3 ends"),
        (torn.promises(replace(TORN, lost=1), 2), "nothing lost"),
        (torn.promises(replace(TORN, twice=1), 2), "nothing torn"),
    ],
)
def test_each_promise_breaks_by_itself(found: dict[str, bool], promise: str) -> None:
    assert len(broken(found)) == bool(promise)
    assert not promise or broken(found)[0].startswith(promise)

"""Chaos in small, from end to end: three brokers, two of each service, four strikes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.reliability.chaos import command
from schemas.topics import ANSWERS, GROUPS, RETRIEVALS

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]


def test_four_strikes_lose_and_repeat_nothing(tmp_path: Path) -> None:
    report = tmp_path / "chaos.json"
    options = command.Options(queries=300, kills=4, seed=0, minutes=0.75, settings=())
    holds = command.run(options, tmp_path, report)
    found = json.loads(report.read_text())
    assert [promise for promise, held in found["promises"].items() if not held] == []
    assert holds
    books = found["results"]["run"]["books"]
    assert (books["published"], books["lost"]) == (300, 0)
    assert books["duplicates"] == {GROUPS.name: 0, RETRIEVALS.name: 0, ANSWERS.name: 0}
    assert found["results"]["in_transaction"] >= 1

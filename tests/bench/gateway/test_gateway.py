"""What decides in the gateway's benchmarks: sessions of agents, riders, texts; and a small run."""

from __future__ import annotations

import json
import random
from itertools import accumulate, islice, pairwise, takewhile
from pathlib import Path

import pytest

from bench.core import cpu
from bench.gateway import agents, latency
from bench.gateway.agents import riders_a_cluster
from bench.gateway.options import AgentsOptions, LatencyOptions
from bench.gateway.responder import pieces
from bench.gateway.sessions import BELOW, ONE_SEARCH, length, steps, think_s
from schemas.record import ClusterId

DRAWS = 20_000


def test_think_times_are_those_of_the_log() -> None:
    drawn = random.Random(1)
    found = [think_s(drawn) for _ in range(DRAWS)]
    for seconds, share in BELOW:
        assert sum(each < seconds for each in found) / DRAWS == pytest.approx(share, abs=0.01)


def test_sessions_are_as_long_as_those_of_the_log() -> None:
    drawn = random.Random(2)
    found = [length(drawn) for _ in range(DRAWS)]
    longer = [each for each in found if each > 1]
    assert 1 - len(longer) / DRAWS == pytest.approx(ONE_SEARCH, abs=0.01)
    assert sum(each <= 10 for each in longer) / len(longer) == pytest.approx(0.90, abs=0.01)
    assert min(longer) == 2


def test_many_agents_search_at_the_same_rate_from_the_start_on() -> None:
    counts = [0] * 4
    for number in range(4_000):
        waits = (wait_s for wait_s, _ in steps(random.Random(number), [[0]], 1.0))
        for at_s in takewhile(lambda at_s: at_s < 80, accumulate(waits)):
            counts[int(at_s // 20)] += 1
    assert max(counts) < 1.25 * min(counts)


def test_a_scale_changes_the_pace_and_not_the_questions() -> None:
    related = [[each, each + 10, each + 20] for each in range(10)]
    slow, fast = (
        list(islice(steps(random.Random(4), related, scale), 100)) for scale in (1.0, 0.1)
    )
    assert [question for _, question in slow] == [question for _, question in fast]
    assert sum(wait for wait, _ in slow) == pytest.approx(10 * sum(wait for wait, _ in fast))


def test_a_session_asks_questions_near_one_subject_in_order() -> None:
    related = [[each, each + 10, each + 20] for each in range(10)]
    found = [question for _, question in islice(steps(random.Random(5), related, 1.0), 200)]
    for before, after in pairwise(found):
        goes_on = after == (before + 10) % 30
        assert goes_on or after < 10, "another session begins with its subject"


def test_riders_are_the_searches_that_share_a_cluster() -> None:
    one, two, three = (ClusterId(each) for each in (1, 2, 3))
    assert riders_a_cluster([[(one, two)], [(one, three)]]) == 1.0
    assert riders_a_cluster([[(one, two), (one, two)], [(one, two), (three,)]]) == 7 / 5
    assert riders_a_cluster([]) == 0.0


def test_no_two_questions_have_the_same_answer() -> None:
    assert {*pieces("a")[:-1]}.isdisjoint(pieces("b")[:-1])
    assert all(pieces("a"))


@pytest.mark.kafka
@pytest.mark.long
def test_each_benchmark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "IDLE_S", 0.1)
    report = tmp_path / "report.json"
    options = LatencyOptions(
        at_once=2, streams=20, seconds=1, warm_up_s=1, work=tmp_path, json_file=report
    )
    assert latency.run(options)
    results = json.loads(report.read_text())["results"]
    streams = results.pop("open streams")
    assert streams["whole"] == streams["open together"] == 20
    assert [len(ways) for ways in results.values()] == [5, 5]


@pytest.mark.kafka
@pytest.mark.data
@pytest.mark.long
def test_agents_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "IDLE_S", 0.1)
    report, some = tmp_path / "report.json", {"rows": 2_000, "nlist": 16, "sessions": 20}
    options = AgentsOptions(
        **some, scale=[0.05], seconds=6, warm_up_s=2, work=tmp_path, json_file=report
    )
    assert agents.run(options)
    alone, many = json.loads(report.read_text())["results"].values()
    assert alone["riders a cluster"] == alone["searches a window"] == alone["of one session"] == 1
    assert many["searches"] > 0 and many["of one session"] > 0

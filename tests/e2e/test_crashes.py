"""kill -9 of each service while work is in flight, again and again: nothing is lost, and little is repeated."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.stack import SERVICES, Stack
from schemas.topics import ANSWERS, GROUPS, QUERIES, RETRIEVALS
from tests.e2e.support import (
    Found,
    Publisher,
    committed_offsets,
    question,
    quick_settings,
    read_all,
    read_to_end,
)

ROUNDS = 3
BURSTS = {"grouper": 300, "searcher": 150, "generator": 40}
"""Queries to have work in flight with: a window takes milliseconds, a search one, a generation many."""
INPUTS = {"grouper": QUERIES.name, "searcher": GROUPS.name, "generator": RETRIEVALS.name}


@dataclass
class Crashes:
    """Publishes bursts and kills services in the middle of them, at seeded moments."""

    bootstrap: str
    stack: Stack
    prefix: str
    rng: random.Random
    published: list[str]
    may_repeat: int = 0
    kills: Counter[str] = field(default_factory=Counter)

    def burst(self, publisher: Publisher, count: int) -> None:
        for _ in range(count):
            query_id = f"q-{len(self.published)}"
            self.published.append(query_id)
            publisher.queue(
                QUERIES.name, json.dumps({"query_id": query_id, "text": question(self.rng)}).encode(), key=query_id
            )
        publisher.flush()

    def kill(self, victim: str, publisher: Publisher) -> None:
        """Kills `victim` at the first look, after a seeded number of records, that finds work in flight."""
        process = self.stack[victim]
        for _ in range(20):
            target = self.rng.randrange(1, 3 if victim == "searcher" else 20)
            before = process.metric("carpool_records_consumed_total")
            self.burst(publisher, BURSTS[victim])
            deadline = time.monotonic() + 3
            while time.monotonic() < deadline:
                taken = process.metric("carpool_records_consumed_total") - before
                if taken >= target and process.metric("carpool_units_in_flight") > 0:
                    process.kill()
                    self.kills[victim] += 1
                    self.may_repeat += self.uncommitted(victim)
                    process.start()
                    return
        raise AssertionError(f"{victim} never had work in flight")

    def uncommitted(self, victim: str) -> int:
        """Queries in the input of `victim` that it had not committed: the most that can be done twice."""
        topic = INPUTS[victim]
        records = read_to_end(self.bootstrap, topic)
        done = committed_offsets(
            self.bootstrap, f"{self.prefix}-{victim}", topic, {record.partition for record in records}
        )
        open_records = [record for record in records if record.offset >= done.get(record.partition, 0)]
        if victim != "searcher":
            return len(open_records)
        return sum(len(group.body["queries"]) for group in open_records)


@pytest.mark.timeout(240)
def test_kills_lose_nothing_and_repeat_no_more_than_was_in_flight(
    fresh_broker: str, small_index: Path, tmp_path: Path
) -> None:
    prefix = "crashes"
    settings = quick_settings(prefix) | {"CARPOOL_KAFKA_COMMIT_INTERVAL_MS": "5"}
    publisher = Publisher(fresh_broker)
    rng = random.Random(20_261_121)
    with Stack(bootstrap=fresh_broker, index_dir=small_index, work_dir=tmp_path / "run", settings=settings) as stack:
        crashes = Crashes(fresh_broker, stack, prefix, rng, [])
        for _ in range(ROUNDS):
            # From the end to the front: who is killed next still gets work from those before it.
            for victim in reversed(SERVICES):
                crashes.kill(victim, publisher)
            for victim in SERVICES:
                stack[victim].wait_ready(30)
        wanted = set(crashes.published)

        def all_answered(found: list[Found]) -> bool:
            return wanted <= {(each.key or b"").decode() for each in found}

        read_all(fresh_broker, ANSWERS.name, until=all_answered, timeout_s=60)
        time.sleep(1)  # whatever is still repeated
        answers = read_to_end(fresh_broker, ANSWERS.name)

    assert crashes.kills == dict.fromkeys(SERVICES, ROUNDS), "each was killed with work in flight"
    by_id = Counter(each.body["query_id"] for each in answers)
    assert set(by_id) == wanted, "every query is answered, and nothing else is"
    assert {each.body["status"] for each in answers} == {"ok"}
    repeated = sum(count - 1 for count in by_id.values())
    assert repeated <= crashes.may_repeat
    first: dict[str, list[float]] = {}
    for each in answers:
        # By their scores: which of two passages that score alike comes first depends on what was searched together.
        scores = [hit["score"] for hit in each.body["retrieved"]]
        assert first.setdefault(each.body["query_id"], scores) == pytest.approx(scores, abs=1e-5)

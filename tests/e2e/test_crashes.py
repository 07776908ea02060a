"""kill -9 of each service while work is in flight, again and again: nothing is lost, and little is repeated."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.stack import SERVICES, Stack
from schemas.topics import ANSWERS, GROUPS, QUERIES, RETRIEVALS
from tests.e2e.support import (
    Found,
    Publisher,
    committed_offsets,
    end_offsets,
    question,
    quick_settings,
    read_all,
)

KILLS_EACH = 3
BURST = 40
INPUTS = {"grouper": QUERIES.name, "searcher": GROUPS.name, "generator": RETRIEVALS.name}


@dataclass
class Crashes:
    """Publishes bursts and kills services in the middle of them, in a seeded order, at seeded moments."""

    bootstrap: str
    stack: Stack
    prefix: str
    rng: random.Random
    published: list[str]
    may_repeat: int = 0

    def burst(self, publisher: Publisher) -> None:
        for _ in range(BURST):
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
            target = self.rng.randrange(1, BURST if victim == "grouper" else 4)
            before = process.metric("carpool_records_consumed_total")
            self.burst(publisher)
            deadline = time.monotonic() + 3
            while time.monotonic() < deadline:
                taken = process.metric("carpool_records_consumed_total") - before
                if taken >= target and process.metric("carpool_units_in_flight") > 0:
                    process.kill()
                    self.may_repeat += self.uncommitted(victim)
                    process.start()
                    process.wait_ready(30)
                    return
        raise AssertionError(f"{victim} never had work in flight")

    def uncommitted(self, victim: str) -> int:
        """Queries in the input of `victim` that it had not committed: the most that can be done twice."""
        topic = INPUTS[victim]
        ends = end_offsets(self.bootstrap, topic)
        done = committed_offsets(self.bootstrap, f"{self.prefix}-{victim}", topic, ends)
        records = sum(end - done.get(partition, 0) for partition, end in ends.items())
        if victim != "searcher":
            return records
        groups = read_all(self.bootstrap, topic, until=lambda found: len(found) >= sum(ends.values()), timeout_s=10)
        return sum(len(group.body["queries"]) for group in groups[len(groups) - records :])


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
        victims = [service for service in SERVICES for _ in range(KILLS_EACH)]
        rng.shuffle(victims)
        for victim in victims:
            crashes.kill(victim, publisher)
        wanted = set(crashes.published)

        def all_answered(found: list[Found]) -> bool:
            return wanted <= {(each.key or b"").decode() for each in found}

        answers = read_all(fresh_broker, ANSWERS.name, until=all_answered, timeout_s=60)
        time.sleep(1)  # whatever is still repeated
        total = sum(end_offsets(fresh_broker, ANSWERS.name).values())
        answers = read_all(fresh_broker, ANSWERS.name, until=lambda found: len(found) >= total, timeout_s=20)

    assert Counter(victims) == dict.fromkeys(SERVICES, KILLS_EACH)
    by_id = Counter(each.body["query_id"] for each in answers)
    assert set(by_id) == wanted, "every query is answered, and nothing else is"
    assert {each.body["status"] for each in answers} == {"ok"}
    repeated = sum(count - 1 for count in by_id.values())
    assert repeated <= crashes.may_repeat
    first = {}
    for each in answers:
        ids = [hit["id"] for hit in each.body["retrieved"]]
        assert first.setdefault(each.body["query_id"], ids) == ids, "a repeated answer found the same passages"

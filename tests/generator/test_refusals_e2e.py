"""The generator as a process on real Kafka: stopped with requests in flight, and before an LLM
server that refuses.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from bench.core.stack import Stack
from carpool.kafka.admin import create_topics
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaServer
from carpool.testing.llm_api import REFUSALS
from carpool.testing.llm_server import LlmServer
from schemas.codec import encode
from schemas.topics import ANSWERS, RETRIEVALS
from tests.e2e.support import LoggedRecord, Publisher, quick_settings, read_all, read_to_end
from tests.records import a_query, a_retrieval, a_source, some_hits
from tests.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

IN_FLIGHT = 24
QUERIES_COUNT = 480
RATE_PER_S = 10
DEADLINE_S = 4.0
RECOVERY_S_MAX = 8.0

_offsets = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with KafkaServer(tmp_path_factory.mktemp("refusals") / "kafka") as kafka:
        yield kafka.bootstrap


@pytest.fixture(autouse=True)
def topics(broker: str) -> None:
    create_topics(KafkaSettings(bootstrap=broker))


def ask(publisher: Publisher, query_id: str, deadline_s: float | None = None) -> None:
    """Publishes the retrieval of a query, with a deadline in epoch seconds."""
    retrieval = a_retrieval(
        a_query(query_id, f"What of {query_id}?"),
        some_hits(1),
        source=a_source(next(_offsets), timestamp_ms=int(time.time() * 1_000)),
        deadline_us=None if deadline_s is None else int(deadline_s * 1_000_000),
    )
    value, headers = encode(retrieval, event_id=query_id, source="test", time_us=0)
    publisher.queue(RETRIEVALS.name, value, key=query_id, headers=headers)


def generator(broker: str, llm: LlmServer, folder: Path, **settings: int) -> Stack:
    """The generator alone."""
    environ = {f"CARPOOL_GENERATOR_{name.upper()}": str(value) for name, value in settings.items()}
    return Stack(
        bootstrap=broker,
        index_dir=folder,
        work_dir=folder,
        services=("generator",),
        settings=quick_settings() | environ | {"CARPOOL_LLM_MODEL": llm.model},
        llm_url=llm.url,
    )


def answers_to(broker: str, prefix: str, count: int) -> list[LoggedRecord]:
    """The answers to the queries of `prefix`, once there are `count` of them, and what comes within
    another second.
    """

    def ours(found: list[LoggedRecord]) -> list[LoggedRecord]:
        return [each for each in found if (each.key or b"").startswith(prefix.encode())]

    read_all(broker, ANSWERS.name, until=lambda found: len(ours(found)) >= count)
    time.sleep(1)
    return ours(read_to_end(broker, ANSWERS.name))


def test_sigterm_with_requests_in_flight_generates_none_of_them_twice(
    broker: str, tmp_path: Path
) -> None:
    publisher = Publisher(broker)
    ids = [f"term-{number}" for number in range(QUERIES_COUNT)]
    with LlmServer(latency_ms=500) as llm:
        stack = generator(broker, llm, tmp_path, concurrency=IN_FLIGHT)
        with stack:
            for query_id in ids:
                ask(publisher, query_id)
            publisher.flush()
            wait_until(lambda: llm.requests.in_flight == IN_FLIGHT, "all slots are taken")
            assert stack["generator"].stop() == 0
            before = llm.requests.completed
            assert IN_FLIGHT <= before < QUERIES_COUNT, (
                "it ended in the middle of the work, and finished what was in hand"
            )
            stack["generator"].start()
            answers = answers_to(broker, "term", QUERIES_COUNT)
    assert Counter(each.body["query_id"] for each in answers) == Counter(ids)
    assert set(llm.requests.started_by_prompt.values()) == {1}
    assert len(llm.requests.started_by_prompt) == QUERIES_COUNT


@pytest.mark.parametrize("outage_s", [4.0, pytest.param(60.0, marks=pytest.mark.long)])
def test_an_llm_server_that_refuses_costs_deadlines_and_nothing_else(
    broker: str, tmp_path: Path, outage_s: float
) -> None:
    publisher = Publisher(broker)
    prefix = f"outage{outage_s:g}"
    deadlines_s: dict[str, float] = {}

    def load(seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            query_id = f"{prefix}-{len(deadlines_s)}"
            deadlines_s[query_id] = time.time() + DEADLINE_S
            ask(publisher, query_id, deadlines_s[query_id])
            publisher.flush()
            time.sleep(1 / RATE_PER_S)

    ended_s: dict[str, float] = {}
    with LlmServer(latency_ms=50) as llm, generator(broker, llm, tmp_path) as stack:
        pid = stack["generator"].pid
        load(2.0)
        for fault in REFUSALS:
            with llm.refusing(fault):
                completed_max = llm.requests.in_flight + llm.requests.completed
                load(outage_s)
                assert llm.requests.completed <= completed_max, "the server did refuse"
            ended_s[fault.mode] = time.time()
            load(RECOVERY_S_MAX + 1.0)
        answers = answers_to(broker, prefix, len(deadlines_s))
        assert stack["generator"].is_running
        assert stack["generator"].pid == pid

    assert Counter(each.body["query_id"] for each in answers) == Counter(deadlines_s.keys()), (
        "one terminal answer each"
    )
    answered_s = {
        each.body["query_id"]: written_s(each) for each in answers if each.body["status"] == "ok"
    }
    late = {
        query_id: at_s - deadlines_s[query_id]
        for query_id, at_s in answered_s.items()
        if at_s > deadlines_s[query_id]
    }
    assert not late
    first_s = {
        mode: min((at_s for at_s in answered_s.values() if at_s > end_s), default=float("inf"))
        - end_s
        for mode, end_s in ended_s.items()
    }
    print(
        "first answer after recovery, s:",
        {mode: round(seconds, 2) for mode, seconds in first_s.items()},
    )
    assert {mode: seconds for mode, seconds in first_s.items() if seconds > RECOVERY_S_MAX} == {}
    print("answers by status:", Counter(each.body["status"] for each in answers))


def written_s(answer: LoggedRecord) -> float:
    """When the answer was made, epoch seconds."""
    return datetime.fromisoformat(answer.text("ce_time") or "").timestamp()

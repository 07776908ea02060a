"""The generator as a process on real Kafka: equal prompts through a `kill -9`, withdrawn questions,
and an LLM server that refuses.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import pytest

from bench.core.stack import Stack
from carpool.kafka.admin import create_topics
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaServer
from carpool.testing.llm_server import LlmFault, LlmServer
from producers import Client
from schemas.answer import Answer
from schemas.codec import decode, encode
from schemas.topics import ANSWERS, RETRIEVALS
from tests.e2e.support import LoggedRecord, Publisher, quick_settings, read_all, read_to_end
from tests.records import a_query, a_retrieval, a_source, some_hits
from tests.waiting import WAIT_S, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CONCURRENCY = 8
RATE_PER_S = 10
DEADLINE_S = 4.0
RECOVERY_S_MAX = 8.0
DRAWN, QUESTIONS = 200, 3_700
_offsets = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    quick = {"group.consumer.session.timeout.ms": 2_000}  # one member is killed
    folder = tmp_path_factory.mktemp("generator") / "kafka"
    with KafkaServer(folder, settings=quick) as kafka:
        create_topics(KafkaSettings(bootstrap=kafka.bootstrap))
        yield kafka.bootstrap


def generator(broker: str, llm: LlmServer, folder: Path, **settings: str) -> Stack:
    """The generator alone."""
    return Stack(
        bootstrap=broker,
        index_dir=folder,
        work_dir=folder,
        services=("generator",),
        settings=quick_settings() | {"CARPOOL_LLM_MODEL": llm.model} | settings,
        llm_url=llm.url,
    )


def ask(publisher: Publisher, query_id: str, text: str, deadline_s: float | None = None) -> None:
    """Publishes the retrieval of a query, with a deadline in epoch seconds."""
    retrieval = a_retrieval(
        a_query(query_id, text),
        some_hits(),
        source=a_source(next(_offsets), timestamp_ms=int(time.time() * 1_000)),
        deadline_us=None if deadline_s is None else int(deadline_s * 1_000_000),
    )
    value, headers = encode(retrieval, event_id=query_id, source="test", time_us=0)
    publisher.queue(RETRIEVALS.name, value, key=query_id, headers=headers)


def answers_in(records: Sequence[LoggedRecord]) -> list[Answer]:
    return [decode(Answer, each.value, each.headers) for each in records]


def records_of(broker: str, ids: Collection[str]) -> list[LoggedRecord]:
    """The answers to these queries, once there is one for each, and what comes within a second."""

    def ours(found: list[LoggedRecord]) -> list[LoggedRecord]:
        return [each for each in found if (each.key or b"").decode() in ids]

    until = 2 * WAIT_S
    read_all(broker, ANSWERS.name, until=lambda all_: len(ours(all_)) >= len(ids), timeout_s=until)
    time.sleep(1)
    found = ours(read_to_end(broker, ANSWERS.name))
    assert Counter(each.body["query_id"] for each in found) == dict.fromkeys(ids, 1)
    return found


def test_questions_by_zipf_are_generated_once_each_through_a_kill(
    broker: str, tmp_path: Path
) -> None:
    weights = [1 / rank for rank in range(1, QUESTIONS + 1)]
    drawn = random.Random(7).choices(range(QUESTIONS), weights, k=DRAWN)
    asked = {f"zipf-{n}": f"What of number {question}?" for n, question in enumerate(drawn)}
    publisher = Publisher(broker)
    for query_id, text in asked.items():
        ask(publisher, query_id, text)
    publisher.flush()

    def generated() -> int:
        return sum(not each.replayed for each in answers_in(read_to_end(broker, ANSWERS.name)))

    with LlmServer(latency_ms=300) as llm, generator(broker, llm, tmp_path) as stack:
        process = stack["generator"]
        read_all(broker, ANSWERS.name, until=lambda found: len(found) >= DRAWN // 10)
        process.kill()
        time.sleep(1)  # what is in transit arrives, and the server sees the disconnects
        lost = llm.requests.started - generated()
        process.start()
        answers = answers_in(records_of(broker, asked))
        sent = llm.requests.started
    assert {each.status for each in answers} <= {"ok", "partial"}
    said = {(asked[each.query_id], each.answer) for each in answers}
    different = len(set(asked.values()))
    assert len(said) == different, "equal questions have equal answers"
    assert sum(not each.replayed for each in answers) == different
    assert 0 <= lost <= 2 * CONCURRENCY, "in flight, or answered and not committed"
    assert sent <= different + lost, "lost with the kill is all that is sent twice"
    assert sum(each.usage.reused_tokens for each in answers if each.usage is not None) > 0


async def withdraw(broker: str, query_ids: list[str]) -> None:
    async with Client(broker) as client:
        for query_id in query_ids:
            await client.cancel(query_id)


def test_withdrawn_questions_free_all_places_at_a_server_that_hangs(
    broker: str, tmp_path: Path
) -> None:
    publisher = Publisher(broker)
    *hanging, last = (f"hang-{n}" for n in range(CONCURRENCY + 1))
    with LlmServer() as llm, generator(broker, llm, tmp_path):
        with llm.refusing(LlmFault(mode="hang")):
            for query_id in hanging:
                ask(publisher, query_id, f"What of {query_id}?")
            publisher.flush()
            wait_until(lambda: llm.requests.in_flight == CONCURRENCY, "all places are taken")
        asyncio.run(withdraw(broker, [*hanging, last]))
        time.sleep(0.01)
        ask(publisher, last, "What of the last?")  # its id was withdrawn before it was asked
        publisher.flush()
        answers = answers_in(records_of(broker, [*hanging, last]))
    assert {each.query_id: each.status for each in answers} == {
        **dict.fromkeys(hanging, "cancelled"),
        last: "ok",
    }
    assert llm.requests.disconnected == CONCURRENCY


@pytest.mark.parametrize("outage_s", [1.0, pytest.param(60.0, marks=pytest.mark.long)])
def test_an_llm_server_that_refuses_costs_deadlines_and_nothing_else(
    broker: str, tmp_path: Path, outage_s: float
) -> None:
    publisher = Publisher(broker)
    deadlines_s: dict[str, float] = {}

    def load(seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and not until():
            query_id = f"outage{outage_s:g}-{len(deadlines_s)}"
            deadlines_s[query_id] = time.time() + DEADLINE_S
            ask(publisher, query_id, f"What of {query_id}?", deadlines_s[query_id])
            publisher.flush()
            time.sleep(1 / RATE_PER_S)

    with LlmServer(latency_ms=50) as llm, generator(broker, llm, tmp_path) as stack:
        pid = stack["generator"].pid
        load(1.0)
        busy = LlmFault(mode="429", retry_after_s=1.0)
        others = (LlmFault(mode=mode) for mode in ("503", "hang", "reset", "garbage"))
        for fault in (busy, *others):
            with llm.refusing(fault):
                completed = llm.requests.in_flight + llm.requests.completed
                load(outage_s)
                assert llm.requests.completed <= completed, "the server did refuse"
            load(RECOVERY_S_MAX, until=lambda: llm.requests.completed > completed)  # noqa: B023
            assert llm.requests.completed > completed, f"no answer after {fault.mode}"
        records = records_of(broker, deadlines_s)
        assert stack["generator"].is_running
        assert stack["generator"].pid == pid
    answered_s = {
        each.body["query_id"]: datetime.fromisoformat(each.text("ce_time") or "").timestamp()
        for each in records
        if each.body["status"] == "ok"
    }
    late = {id: at_s for id, at_s in answered_s.items() if at_s > deadlines_s[id]}
    assert answered_s and not late

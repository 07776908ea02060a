"""A withdrawn question frees its place at the LLM server: the generator as a process on brokers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from carpool.testing.llm_server import LlmFault, LlmServer
from producers import Client
from schemas.codec import encode
from schemas.topics import ANSWERS, RETRIEVALS
from tests.e2e.support import Publisher, read_all
from tests.generator.test_reuse_e2e import answered, generator
from tests.records import a_query, a_retrieval, a_source, some_hits
from tests.waiting import wait_until

HANGING = 8


async def withdraw(broker: str, query_ids: list[str]) -> None:
    async with Client(broker) as client:
        for query_id in query_ids:
            await client.cancel(query_id)


@pytest.mark.slow
def test_withdrawn_questions_free_all_places_at_a_server_that_hangs(
    fresh_broker: str, tmp_path: Path
) -> None:
    publisher = Publisher(fresh_broker)

    def ask(n: int) -> None:
        source = a_source(n, timestamp_ms=int(time.time() * 1_000))
        retrieval = a_retrieval(a_query(f"q-{n}", f"What of {n}?"), some_hits(), source=source)
        value, headers = encode(retrieval, event_id=f"q-{n}", source="test", time_us=0)
        publisher.queue(RETRIEVALS.name, value, key=f"q-{n}", headers=headers)

    with LlmServer() as llm, generator(fresh_broker, tmp_path, llm.url, llm.model):
        with llm.refusing(LlmFault(mode="hang")):
            for n in range(HANGING):
                ask(n)
            publisher.flush()
            wait_until(lambda: llm.requests.in_flight == HANGING, "all places are taken")
        asyncio.run(withdraw(fresh_broker, [f"q-{n}" for n in range(HANGING + 1)]))
        time.sleep(0.01)
        ask(HANGING)  # its id was withdrawn before it was asked
        publisher.flush()
        began_s = time.monotonic()
        records = read_all(fresh_broker, ANSWERS.name, until=lambda found: len(found) > HANGING)
        took_s = time.monotonic() - began_s
    statuses = {each.query_id: each.status for each in answered(records)}
    assert statuses == {f"q-{n}": "cancelled" for n in range(HANGING)} | {f"q-{HANGING}": "ok"}
    assert llm.requests.disconnected == HANGING
    assert took_s < 10

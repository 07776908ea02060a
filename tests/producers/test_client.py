"""The client against brokers: its own answers, pieces, deadlines, and errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Iterator

import msgspec
import pytest

import producers.client as client_module
from bench.core.embedded_broker import EmbeddedBroker
from carpool.errors import ConfigError, RecordError, RetryableError
from producers import AnswerFailed, AnswerTimeout, Client, raise_for_status
from schemas.answer import Answer, PartialAnswer, StepDone
from schemas.cancel import Cancel
from schemas.codec import decode
from schemas.query import Query
from schemas.record import Record, Source
from schemas.topics import ANSWERS, CANCELS, QUERIES
from tests.clocks import NOW_US, HandClock
from tests.e2e.support import read_to_end
from tests.forks import in_fork
from tests.producers.responder import Responder, answer_to
from tests.records import an_answer
from tests.waiting import WAIT_S

GRAPH = {
    "nodes": [{"id": "a", "prompt": "{input}"}],
    "edges": [{"from": "START", "to": "a"}, {"from": "a", "to": "END"}],
}


@pytest.fixture
def responder(embedded_bootstrap: str) -> Iterator[Responder]:
    made = Responder(embedded_bootstrap)
    yield made
    made.close()


def test_concurrent_asks_each_get_their_own_answer(responder: Responder) -> None:
    async def ask_all() -> list[Answer]:
        async with Client(responder.bootstrap) as client:
            return await asyncio.gather(
                *(client.ask(f"question {number}", timeout_s=WAIT_S) for number in range(50))
            )

    answers = asyncio.run(ask_all())
    assert [answer.answer for answer in answers] == [f"question {number}" for number in range(50)]


def test_an_answer_with_a_key_of_its_own_is_found(responder: Responder) -> None:
    def refused(query: Query, source: Source) -> list[Record]:
        answer = an_answer(query.query_id, "failed", source=source)
        responder.write(answer, f"{query.query_id}@{source.place}")
        return []

    responder.reply = refused

    async def ask() -> Answer:
        async with Client(responder.bootstrap) as client:
            return await client.ask("why?", query_id="a@b", timeout_s=WAIT_S)

    assert asyncio.run(ask()).status == "failed"


def test_an_earlier_answer_to_the_id_is_not_returned(responder: Responder) -> None:
    query = Query(query_id="asked-before", text="old")
    responder.write(
        answer_to(query, Source(topic=QUERIES.name, partition=0, offset=999_999), "stale"),
        "asked-before",
    )

    async def ask() -> Answer:
        async with Client(responder.bootstrap) as client:
            # Also while it waits: the answer to another record of the same id.
            responder.reply = lambda query, source: [
                answer_to(
                    query,
                    Source(
                        topic=QUERIES.name, partition=source.partition, offset=source.offset + 7
                    ),
                    "stale",
                ),
                answer_to(query, source, "fresh"),
            ]
            return await client.ask("new", query_id="asked-before", timeout_s=WAIT_S)

    assert asyncio.run(ask()).answer == "fresh"


def test_the_deadline_is_sent_with_the_question(responder: Responder) -> None:
    async def ask() -> None:
        async with Client(responder.bootstrap, clock=HandClock()) as client:
            await client.ask("when?", timeout_s=WAIT_S)

    asyncio.run(ask())
    deadlines = [query.deadline for query in responder.seen if query.text == "when?"]
    assert deadlines == [NOW_US // 1_000 + WAIT_S * 1_000]


def test_pieces_come_before_the_answer_without_repeats(responder: Responder) -> None:
    def reply(query: Query, source: Source) -> list[Record]:
        pieces = [(0, "a", "g1"), (0, "a", "g1"), (1, "b", "g1"), (0, "c", "g2"), (2, "late", "g1")]
        return [
            PartialAnswer(query_id=query.query_id, generation_id=generation, seq=seq, text=text)
            for seq, text, generation in pieces
        ]

    responder.reply = reply

    async def ask() -> list[str]:
        shown = []
        async with Client(responder.bootstrap) as client:
            async for event in client.ask_stream("stream", timeout_s=WAIT_S):
                if isinstance(event, PartialAnswer):
                    shown.append(event.text)
                    if event.text == "c":  # the answer follows: topics have no common order
                        query = responder.seen[-1]
                        responder.write(answer_to(query, None, "c"), query.query_id)
                else:
                    shown.append(f"answer {event.answer}")
        return shown

    assert asyncio.run(ask()) == ["a", "b", "c", "answer c"]


def test_a_workflow_is_sent_and_its_steps_come_before_its_answer(responder: Responder) -> None:
    steps = (
        StepDone(n=1, kind="generate", text="Who wrote it?", tokens=4),
        StepDone(n=2, kind="retrieve", text="Who wrote it?", doc_ids=("a",), titles=("A",)),
    )

    def reply(query: Query, source: Source) -> list[Record]:
        first, last = (
            PartialAnswer(query_id=query.query_id, generation_id="s", seq=seq, text="", step=step)
            for seq, step in enumerate(steps)
        )
        return [first, first, last, piece_of(query)]

    responder.reply = reply

    async def ask() -> list[object]:
        events: list[object] = []
        async with Client(responder.bootstrap) as client:
            bad = [GRAPH["edges"][0], {"from": "a", "to": "b"}]
            with pytest.raises(RecordError, match="node 'a' leads to 'b'"):
                await client.ask("?", workflow=GRAPH | {"edges": bad})
            async for event in client.ask_stream("?", workflow=GRAPH, timeout_s=WAIT_S):
                is_piece = isinstance(event, PartialAnswer)
                events.append((event.step or event.text) if is_piece else event.answer)
                if events[-1] == "In":
                    responder.write(answer_to(responder.seen[-1], None, "In 1851"), event.query_id)
        return events

    assert asyncio.run(ask()) == [*steps, "In", "In 1851"]
    assert json.loads(msgspec.json.encode(responder.seen[-1].workflow)) == {"graph": GRAPH}
    assert "?" not in [query.text for query in responder.seen[:-1]], "the bad graph was not sent"


def test_an_ask_that_ends_without_an_answer_withdraws_its_question(responder: Responder) -> None:
    name = uuid.uuid4().hex

    def reply(query: Query, source: Source) -> list[Record]:
        is_answered = query.query_id == f"{name}-answered"
        return [answer_to(query, source)] if is_answered else [piece_of(query)]

    responder.reply = reply

    async def ask() -> None:
        async with Client(responder.bootstrap) as client:
            await client.ask("?", query_id=f"{name}-answered", timeout_s=WAIT_S)
            task = asyncio.create_task(client.ask("?", query_id=f"{name}-left", timeout_s=WAIT_S))
            await asyncio.sleep(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            says = rf"{name}-late within 0.5 s.*carpool status"
            with pytest.raises(AnswerTimeout, match=says) as missed:
                await client.ask("?", query_id=f"{name}-late", timeout_s=0.5)
            assert missed.value.timeout_s == 0.5
            stream = client.ask_stream("?", query_id=f"{name}-stream", timeout_s=WAIT_S)
            async for _ in stream:
                break
            await stream.aclose()
            await client.cancel(f"{name}-by-id")
            with pytest.raises(RecordError, match="query_id"):
                await client.cancel("")

    asyncio.run(ask())
    found = {
        cancel.query_id: cancel.source and cancel.source.topic
        for message in read_to_end(responder.bootstrap, CANCELS.name)
        if name.encode() in message.value  # the topic also holds the records of other tests
        and (cancel := decode(Cancel, message.value, message.headers))
    }
    ended = {f"{name}-{kind}": QUERIES.name for kind in ("left", "late", "stream")}
    assert found == ended | {f"{name}-by-id": None}


def piece_of(query: Query) -> PartialAnswer:
    return PartialAnswer(query_id=query.query_id, generation_id="g", seq=0, text="In")


def test_more_asks_than_the_setting_allows_are_refused_and_not_sent(
    responder: Responder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ASKS_MAX", 1)
    responder.reply = lambda query, source: []

    async def ask() -> None:
        async with Client(responder.bootstrap) as client:
            first = asyncio.create_task(client.ask("?", timeout_s=WAIT_S))
            await asyncio.sleep(0.05)
            with pytest.raises(RetryableError, match="answers already"):
                await client.ask("one too many", timeout_s=WAIT_S)
            first.cancel()

    asyncio.run(ask())
    assert all(query.text != "one too many" for query in responder.seen)


def test_an_answer_that_this_build_cannot_read_is_an_error_and_not_a_wait(
    responder: Responder,
) -> None:
    def reply(query: Query, source: Source) -> list[Record]:
        responder._producer.produce(ANSWERS.name, key=query.query_id, value=b'{"query_id": 5}')
        return []

    responder.reply = reply

    async def ask() -> None:
        async with Client(responder.bootstrap) as client:
            await client.ask("?", timeout_s=WAIT_S)

    with pytest.raises(ConfigError, match="cannot be read by this client"):
        asyncio.run(ask())


def test_missing_topics_are_an_error_that_names_the_command() -> None:
    async def connect(bootstrap: str) -> None:
        async with Client(bootstrap):
            pass

    with (
        EmbeddedBroker() as broker,
        pytest.raises(ConfigError, match=r"no topic rag.queries.v1.*carpool topics create"),
    ):
        asyncio.run(connect(broker.bootstrap))


def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(ConfigError, match="async with"):
        asyncio.run(Client("127.0.0.1:1").publish("?"))


def test_a_client_that_was_opened_before_a_fork_says_so_in_the_child(responder: Responder) -> None:
    async def ask() -> str:
        async with Client(responder.bootstrap) as client:

            async def use() -> None:
                async with contextlib.AsyncExitStack() as opened:
                    opened.push_async_exit(client)
                    await client.publish("?")

            said = in_fork(lambda: str(asyncio.run(use())))
            assert (await client.ask("of the parent", timeout_s=WAIT_S)).status == "ok"
            return said

    assert "opened before the process was forked" in asyncio.run(ask())


def test_a_failed_answer_is_raised_on_demand() -> None:
    with pytest.raises(AnswerFailed, match="ended as failed"):
        raise_for_status(an_answer("q", "failed"))
    assert raise_for_status(an_answer("q")).status == "ok"

"""The Python client: publishes questions and waits for their answers, with asyncio.

async with Client.from_settings() as client:
    await client.put("eiffel", title="Eiffel Tower", text="The Eiffel Tower was built in 1889.")
    answer = await client.ask("When was the Eiffel Tower built?", top_k=3, timeout_s=30)
    print(answer.answer, [citation.title for citation in answer.citations])
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar, Unpack

import msgspec

from carpool.clock import Clock, SystemClock
from carpool.errors import ConfigError, RecordError, RetryableError
from carpool.kafka.settings import KafkaSettings
from carpool.settings import load_settings, settings_file
from producers.build_query import QueryRecord, QuestionArgs, build_cancel, build_record, source_of
from producers.documents import DocumentCalls
from producers.errors import AnswerTimeout, PublishError
from producers.match_answers import ExpectedAnswers, PartialText, Place, Ticket
from producers.publish_queries import Publisher
from producers.read_answers import AnswerReader
from producers.settings import ClientSections, ClientSettings
from schemas.answer import Answer, PartialAnswer
from schemas.codec import decode
from schemas.record import Headers
from schemas.topics import ANSWERS, KEY_SEPARATOR

T = TypeVar("T")
Event = Answer | PartialAnswer | Exception

ASKS_MAX = 10_000
"""Questions of one client that may wait for answers."""


@dataclass(kw_only=True)
class _PendingAsk:
    """One `ask` in flight. The client's lock guards all but `loop` and `events`."""

    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    place: Place | None = None
    partial: PartialText | None = None

    def put(self, event: Event) -> None:
        """Passes an event to the asking task, from any thread, unless its loop is closed."""
        _call(self.loop, self.events.put_nowait, event)


class Client(DocumentCalls):
    """Publishes questions and waits for their answers. Concurrent asks share one connection.

    It puts and deletes documents, too.

    Open it with `async with`, and use it from tasks of that event loop. A process that was forked
    since opens one of its own. The base install suffices.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        prefix: str | None = None,
        kafka: KafkaSettings | None = None,
        settings: ClientSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Takes the brokers as `bootstrap`, or as `kafka` settings, such as for security.

        `prefix`: the `kafka.prefix` of the services that are to answer.
        """
        if kafka is None:
            kafka = KafkaSettings(prefix=prefix or "")
            if bootstrap is not None:
                kafka = msgspec.structs.replace(kafka, bootstrap=bootstrap)
        elif bootstrap is not None:
            raise ConfigError("give either `bootstrap` or `kafka`: both name brokers")
        elif prefix is not None:
            raise ConfigError("give either `prefix` or `kafka`, which has a prefix of its own")
        self._kafka = kafka
        self._settings = settings or ClientSettings()
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._expected = ExpectedAnswers()
        self._asks: dict[Ticket, _PendingAsk] = {}
        self._publisher: Publisher | None = None
        self._reader: AnswerReader | None = None

    @classmethod
    def from_settings(cls, file: str | Path | None = None) -> Self:
        """Takes the sections `kafka` and `client`, with brokers and security, as the services do.

        They are read from `file`, or the file that `CARPOOL_CONFIG` names, and from `CARPOOL_*`
        variables, which win; secrets from variables only. Raises `ConfigError`.
        """
        path = settings_file(None if file is None else Path(file), os.environ)
        sections = load_settings(ClientSections, file=path, environ=os.environ)
        return cls(kafka=sections.kafka, settings=sections.client)

    async def __aenter__(self) -> Self:
        """Connects.

        Raises `RetryableError` when no broker answers in time, `ConfigError` when a topic is
        missing.
        """
        # The producer first: an idempotent one needs half a second, and the reader starts then.
        publisher = Publisher(self._kafka, self._settings)
        reader = AnswerReader(self._kafka, self._arrived)
        try:
            await asyncio.to_thread(reader.start)
        except BaseException:
            await asyncio.to_thread(publisher.close, 0)
            raise
        self._publisher, self._reader, self._pid = publisher, reader, os.getpid()
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Waits for acknowledgements of what was published (not for answers), and disconnects."""
        publisher, reader = self._publisher, self._reader
        self._publisher = self._reader = None
        if self._pid != os.getpid():
            return  # they are the parent's
        if publisher is not None:
            await asyncio.to_thread(publisher.close, self._settings.publish_timeout_ms / 1_000)
        if reader is not None:
            await asyncio.to_thread(reader.close)

    @property
    def trouble(self) -> str:
        """Why answers cannot be read now, in words; "" while they can. Thread-safe."""
        return "it is not connected" if self._reader is None else self._reader.trouble.strip()

    async def publish(
        self,
        text: str | None = None,
        *,
        deadline_s: float | None = None,
        **question: Unpack[QuestionArgs],
    ) -> str:
        """Publishes a question and returns its id once the brokers have it. `question`: see
        `QuestionArgs`.

        `deadline_s`: seconds from now after which the answer is useless. Raises `RecordError`,
        `PublishError`.
        """
        record = self._record(text, deadline_s, question)
        await self._send(record)
        return record.query_id

    async def cancel(self, query_id: str) -> None:
        """Withdraws the questions with this id; returns once the brokers have the cancel.

        A question without an answer ends as `cancelled`, and an `ask` that waits for it returns
        that. A question with an answer keeps it. Best effort: an answer may be on its way. An
        unused id is no error, and a question that is published with it later is answered. Raises
        `RecordError`, `PublishError`.
        """
        await self._send(build_cancel(query_id, None, self._clock.now_us()))

    async def ask(
        self,
        text: str | None = None,
        *,
        timeout_s: float | None = None,
        **question: Unpack[QuestionArgs],
    ) -> Answer:
        """Publishes a question and returns its terminal answer, of any status.

        `timeout_s` is also the deadline, so services drop the query when it is late. An ask that
        ends without an answer withdraws its question (`rag.cancels.v1`). Arguments as for
        `publish`. Raises `AnswerTimeout`, `PublishError`, `RecordError`; `RetryableError` beyond
        `ASKS_MAX`. See `raise_for_status`.
        """
        async with aclosing(self._events(text, timeout_s, question, stream=False)) as events:
            async for event in events:
                if isinstance(event, Answer):
                    return event
        raise AssertionError("a stream of events ends with an answer or an error")

    async def ask_stream(
        self,
        text: str | None = None,
        *,
        timeout_s: float | None = None,
        **question: Unpack[QuestionArgs],
    ) -> AsyncGenerator[PartialAnswer | Answer, None]:
        """As `ask`, but yields pieces of the answer as they are written, then the answer.

        Pieces are best effort: some or all may be missing. A piece with a new `generation_id`
        discards the text so far. One with `step` has no text: it tells a finished step of a
        `workflow`. Only the terminal answer counts, which has all `steps`.
        """
        await asyncio.to_thread(self._opened(self._reader).follow_partials)
        async with aclosing(self._events(text, timeout_s, question, stream=True)) as events:
            async for event in events:
                yield event

    async def _events(
        self, text: str | None, timeout_s: float | None, question: QuestionArgs, *, stream: bool
    ) -> AsyncGenerator[PartialAnswer | Answer, None]:
        within_s = self._settings.answer_timeout_ms / 1_000 if timeout_s is None else timeout_s
        if not 0 < within_s < float("inf"):
            raise ConfigError(
                f"timeout_s is {within_s}: an ask needs a time above 0 within which it ends"
            )
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        record = self._record(text, within_s, question)
        publisher, reader = self._opened(self._publisher), self._opened(self._reader)
        ask = _PendingAsk(loop=loop, partial=PartialText() if stream else None)
        ticket = self._expect(record.query_id, ask)
        is_waiting = False
        try:
            publisher.send(record, lambda place, error: self._placed(ticket, place, error))
            is_waiting = True
            while True:
                try:
                    event = await asyncio.wait_for(ask.events.get(), until - loop.time())
                except TimeoutError:
                    why = reader.trouble
                    raise AnswerTimeout(record.query_id, within_s, ask.place, why) from None
                is_waiting = isinstance(event, PartialAnswer)
                if isinstance(event, Exception):
                    raise event
                yield event
                if isinstance(event, Answer):
                    return
        finally:
            with self._lock:
                self._expected.forget(ticket)
                del self._asks[ticket]
            if is_waiting:
                self._withdraw(publisher, record, ask.place)

    def _withdraw(self, publisher: Publisher, question: QueryRecord, place: Place | None) -> None:
        """Withdraws a question whose answer nobody waits for any more; best effort."""
        source = source_of(question, place)
        cancel = build_cancel(question.query_id, source, self._clock.now_us())
        with contextlib.suppress(PublishError):
            publisher.send(cancel, lambda _, error: None)

    async def _send(self, record: QueryRecord) -> Place | None:
        """Publishes a record, and returns its place once the brokers have it, if they say it.

        Raises `PublishError`.
        """
        loop = asyncio.get_running_loop()
        results: asyncio.Queue[tuple[Place | None, PublishError | None]] = asyncio.Queue()
        self._opened(self._publisher).send(
            record, lambda *result: _call(loop, results.put_nowait, result)
        )
        place, error = await results.get()
        if error is not None:
            raise error
        return place

    def _record(
        self, text: str | None, deadline_s: float | None, question: QuestionArgs
    ) -> QueryRecord:
        now_us = self._clock.now_us() + self._clock.host_lead_us()
        return build_record(
            text,
            deadline_ms=None if deadline_s is None else now_us // 1_000 + int(deadline_s * 1_000),
            now_us=now_us,
            **question,
        )

    def _expect(self, query_id: str, ask: _PendingAsk) -> Ticket:
        with self._lock:
            if len(self._expected) >= ASKS_MAX:
                raise RetryableError(
                    f"{len(self._expected)} questions wait for answers already; nothing was sent. "
                    "Ask fewer at once"
                )
            ticket = self._expected.expect(query_id)
            self._asks[ticket] = ask
            return ticket

    def _placed(self, ticket: Ticket, place: Place | None, error: PublishError | None) -> None:
        """Notes the acknowledgement of a question, on the publisher's thread."""
        with self._lock:
            ask = self._asks.get(ticket)
            if ask is None:
                return
            ask.place = place
            event = error if error is not None else self._expected.placed(ticket, place)
        if event is not None:
            ask.put(event)

    def _arrived(self, topic: str, key: bytes, value: bytes, headers: Headers) -> None:
        """Takes a record of an answers' topic, on the reader's thread. Most have other keys."""
        query_id = key.decode(errors="replace")
        with self._lock:
            if not self._expected.expects(query_id):
                query_id = query_id.rpartition(KEY_SEPARATOR)[0]
            if not self._expected.expects(query_id):
                return
        record: Answer | PartialAnswer
        try:
            record = (
                decode(Answer, value, headers)
                if topic == ANSWERS.name
                else decode(PartialAnswer, value, headers)
            )
        except RecordError as error:
            failure = ConfigError(
                f"the answer to {query_id} cannot be read by this client ({error}): are versions "
                "mixed?"
            )
            with self._lock:
                asks = [self._asks[ticket] for ticket in self._expected.tickets(query_id)]
            for ask in asks if topic == ANSWERS.name else ():
                ask.put(failure)
            return
        with self._lock:
            asks = self._takers(record)
        for ask in asks:
            ask.put(record)

    def _takers(self, record: Answer | PartialAnswer) -> list[_PendingAsk]:
        if isinstance(record, Answer):
            return [self._asks[ticket] for ticket in self._expected.answered(record)]
        asks = [self._asks[ticket] for ticket in self._expected.tickets(record.query_id)]
        return [ask for ask in asks if ask.partial is not None and ask.partial.add(record)]

    def _opened(self, part: T | None) -> T:
        if part is None:
            raise ConfigError("this client is not open: use `async with Client(...) as client`")
        if self._pid != os.getpid():
            raise ConfigError(
                "this client was opened before the process was forked, and its connections stayed "
                "with the parent: open one in each worker, after the fork"
            )
        return part


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[T], None], argument: T) -> None:
    """Calls `function` on `loop` from another thread, unless the loop is closed."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, argument)

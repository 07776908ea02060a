"""Questions in flight: each lives a little longer than its client, for a retry of it.

An SDK that gives up waiting asks again, and has no word for "the same". So a question whose client
is gone waits three seconds for an equal request of the same key; then it is cancelled. With an
Idempotency-Key it waits longer: the retry may go to another gateway, and must find it at work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, TypeAlias

from carpool.telemetry.gateway_metrics import GatewayMetrics
from gateway.failures import NoAnswer
from producers import Client
from producers.openai.questions import OpenAIQuestion
from schemas.answer import Answer, PartialAnswer

RETRY_S, KEYED_RETRY_S = 3.0, 30.0
Event: TypeAlias = PartialAnswer | Answer | Exception
Request: TypeAlias = tuple[str, str]
"""The digest of a key, and that of path and body."""


class _Question:
    """A question that is asked, and what came of it so far."""

    def __init__(
        self,
        client: Client,
        asked: OpenAIQuestion,
        query_id: str,
        request: Request,
        answered: Callable[[Answer], None],
    ) -> None:
        self.query_id, self.request = query_id, request
        self._answered = answered
        self.readers, self.is_read = 0, False
        self.end: asyncio.TimerHandle | None = None
        self._events = list[Event]()
        self._grew = asyncio.Event()
        self.task = asyncio.create_task(self._ask(client, asked))

    async def _ask(self, client: Client, asked: OpenAIQuestion) -> None:
        args: dict[str, Any] = {**asked.args, "query_id": self.query_id}
        try:
            if not asked.is_stream:
                self._add(await client.ask(asked.text, **args))
                return
            async for event in client.ask_stream(asked.text, **args):
                self._add(event)
        except Exception as error:  # each of its readers raises it
            self._add(error)

    def _add(self, event: Event) -> None:
        if isinstance(event, Answer):
            self._answered(event)
        self._events.append(event)
        self._grew.set()
        self._grew = asyncio.Event()

    async def read(self) -> AsyncIterator[PartialAnswer | Answer]:
        """Yields all events from the first one, up to the answer. Raises what asking raised."""
        at = 0
        while True:
            while at < len(self._events):
                event = self._events[at]
                at += 1
                if isinstance(event, Exception):
                    raise event
                yield event
                if isinstance(event, Answer):
                    return
            await self._grew.wait()


class QuestionsInFlight:
    """For one event loop."""

    def __init__(self, client: Client, metrics: GatewayMetrics) -> None:
        self._client = client
        self._metrics = metrics
        self._newest: dict[Request, _Question] = {}
        self._all: set[_Question] = set()
        metrics.questions.set_function(lambda: len(self._all))

    async def events(
        self,
        asked: OpenAIQuestion,
        query_id: str,
        request: Request,
        answered: Callable[[Answer], None],
        *,
        is_retry: bool,
        has_key: bool,
    ) -> AsyncGenerator[PartialAnswer | Answer, None]:
        """Asks, or goes on with an equal question whose client is gone; yields pieces and answer.

        `answered` gets the answer, once. `is_retry`: the client says so, so its earlier connection
        is given up. `has_key`: it has an Idempotency-Key. Raises as `Client.ask`.
        """
        question = self._newest.get(request)
        if question is None or (question.readers and not is_retry):
            if any(each.query_id == query_id and each.request != request for each in self._all):
                why = "Idempotency-Key: another body with this key is in progress"
                raise NoAnswer(409, why, retryable=False)
            question = _Question(self._client, asked, query_id, request, answered)
            self._newest[request] = question
            self._all.add(question)
        else:
            self._metrics.taken_over.inc()
        question.readers += 1
        if question.end is not None:
            question.end.cancel()
        try:
            async for event in question.read():
                question.is_read |= isinstance(event, Answer)
                yield event
        except Exception:
            question.is_read = True
            raise
        finally:
            question.readers -= 1
            wait_s = 0.0 if question.is_read else KEYED_RETRY_S if has_key else RETRY_S
            loop = asyncio.get_running_loop()
            question.end = loop.call_later(wait_s, self._end, request, question)

    def _end(self, request: Request, question: _Question) -> None:
        """Forgets a question without a reader; withdraws it, if it has no answer."""
        if question.readers:
            return
        if self._newest.get(request) is question:
            del self._newest[request]
        self._all.discard(question)
        question.task.cancel()

    async def close(self) -> None:
        """Ends all questions. They are withdrawn only if the client is still open."""
        tasks = [question.task for question in self._all]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""The requests in flight at the LLM server, on an event loop in a thread of its own.

Everything but `start`, `soon` and `close` runs in the event loop. The stage decides what to send,
and makes the answers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from carpool.clock import Clock
from carpool.telemetry.metrics import Metrics
from generator.llm.protocol import LlmEngine, LlmRefusal, PromptRefused
from generator.plan.dispatch import CheckPassed, DispatchEvent, RequestAccepted, RequestEnded
from generator.query_in_progress import QueryInProgress
from generator.stream_answer import stream_answer

CHECK_ID = -1
CLOSE_TIMEOUT_S = 5.0


class RequestListener(Protocol):
    """Receives the results of requests, on the event loop."""

    def happened(self, event: DispatchEvent) -> None:
        """A request was accepted or has ended, or the server passed a check."""
        ...

    def refused(self, id: int | None, refusal: LlmRefusal) -> None:
        """The server refused a request; `id` None: a check."""
        ...

    def written(self, work: QueryInProgress, generation_id: str, seq: int, text: str) -> None:
        """The model wrote the next characters of an answer."""
        ...

    def broke(self, error: Exception) -> None:
        """A request failed with an unexpected error."""
        ...


class RequestsInFlight:
    """The requests in flight, by the id of their query; `CHECK_ID` is the check of the server."""

    def __init__(
        self, engine: LlmEngine, listener: RequestListener, metrics: Metrics, clock: Clock
    ) -> None:
        self._engine = engine
        self._listener = listener
        self._metrics = metrics
        self._clock = clock
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="generator", daemon=True)

    # ---- any thread

    def start(self) -> None:
        """Starts the event loop."""
        self._thread.start()

    def soon(self, call: Callable[[], None]) -> None:
        """Makes a call on the event loop, in the order of `soon`. Not allowed after `close`."""
        self._loop.call_soon_threadsafe(call)

    def close(self) -> None:
        """Cancels all requests and closes the connections. Blocks for up to `CLOSE_TIMEOUT_S`."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_TIMEOUT_S)
        elif not self._loop.is_closed():
            self._loop.close()

    # ---- the event loop

    def send(self, id: int, work: QueryInProgress) -> None:
        """Sends the request of a query."""
        self._start(id, self._ask(id, work))

    def check(self) -> None:
        """Checks whether the server answers and has the model."""
        self._start(CHECK_ID, self._check())

    def cancel(self, id: int) -> None:
        """Cancels a request, unless it has ended."""
        if (task := self._tasks.pop(id, None)) is not None:
            task.cancel()
            self._metrics.generator.llm_requests.labels(outcome="cancelled").inc()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._cancel_all())
        finally:
            self._loop.close()

    async def _cancel_all(self) -> None:
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._engine.close()

    def _start(self, id: int, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks[id] = task
        task.add_done_callback(lambda task: self._ended(id, task))

    def _ended(self, id: int, task: asyncio.Task[None]) -> None:
        if self._tasks.get(id) is task:
            del self._tasks[id]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._listener.broke(error)

    async def _check(self) -> None:
        try:
            await self._engine.check()
        except LlmRefusal as refusal:
            self._refused(None, refusal)
        else:
            self._listener.happened(CheckPassed())

    async def _ask(self, id: int, work: QueryInProgress) -> None:
        """Sends one request, and reports its result."""
        work.sent_us, work.first_token_us = self._clock.now_us(), None
        self._metrics.generator.llm_in_flight.inc()
        try:
            work.outcome = await stream_answer(
                self._engine,
                work.prepared.request,
                on_first_token=partial(self._first_token, id, work),
                on_text=partial(self._listener.written, work),
            )
        except PromptRefused as refused:
            work.outcome = refused
            self._metrics.generator.llm_requests.labels(outcome="prompt_refused").inc()
        except LlmRefusal as refusal:
            work.trouble = str(refusal)
            self._refused(id, refusal)
            return
        else:
            self._metrics.generator.llm_requests.labels(outcome="answered").inc()
        finally:
            self._metrics.generator.llm_in_flight.dec()
        self._listener.happened(RequestEnded(id=id))

    def _first_token(self, id: int, work: QueryInProgress) -> None:
        work.first_token_us = self._clock.now_us()
        assert work.sent_us is not None
        self._metrics.generator.time_to_first_token_seconds.observe(
            (work.first_token_us - work.sent_us) / 1_000_000
        )
        self._listener.happened(RequestAccepted(id=id))

    def _refused(self, id: int | None, refusal: LlmRefusal) -> None:
        self._metrics.generator.llm_requests.labels(outcome=refusal.kind).inc()
        self._listener.refused(id, refusal)

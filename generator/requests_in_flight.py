"""The requests in flight at the LLM servers: tasks of an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from generator.llm.servers import LlmServers

CLOSE_TIMEOUT_S = 5.0


class RequestsInFlight:
    """The tasks of requests, by the id of their query, and other tasks.

    `on_error` is called with an error that a task raises, and that id or None, on the event loop.
    """

    def __init__(
        self, servers: LlmServers, on_error: Callable[[int | None, Exception], None]
    ) -> None:
        self._servers = servers
        self._on_error = on_error
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._preparing: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="generator", daemon=True)

    # ---- any thread

    def start(self) -> None:
        """Starts the event loop."""
        self._thread.start()

    def soon(self, call: Callable[[], object]) -> None:
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

    def send(self, id: int, request: Coroutine[Any, Any, None]) -> None:
        """Starts the task of a request."""
        task = self._loop.create_task(request)
        self._tasks[id] = task
        task.add_done_callback(lambda task: self._ended(id, task))

    def prepare(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts another task than a request for an answer. The caller may cancel it."""
        task = self._loop.create_task(work)
        self._preparing.add(task)
        task.add_done_callback(self._prepared)
        return task

    def cancel(self, id: int) -> bool:
        """Cancels a request; returns False if it has ended."""
        task = self._tasks.pop(id, None)
        return task is not None and task.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._cancel_all())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()

    async def _cancel_all(self) -> None:
        tasks = (*self._tasks.values(), *self._preparing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._servers.close()

    def _ended(self, id: int, task: asyncio.Task[None]) -> None:
        if self._tasks.get(id) is task:
            del self._tasks[id]
        self._report(id, task)

    def _prepared(self, task: asyncio.Task[None]) -> None:
        self._preparing.discard(task)
        self._report(None, task)

    def _report(self, id: int | None, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._on_error(id, error)

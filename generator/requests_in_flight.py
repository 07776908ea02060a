"""The requests in flight at the LLM servers: tasks of an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from carpool.worker import Fail, Worker
from generator.llm.servers import LlmServers


class RequestsInFlight:
    """The tasks of requests, by the id of their prompt, and other tasks.

    `on_error` is called with that id and an error that its task raises, on the event loop.
    """

    def __init__(self, servers: LlmServers, on_error: Callable[[int, Exception], None]) -> None:
        self._servers = servers
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests: dict[int, asyncio.Task[None]] = {}  # those of `send`
        self._worker = Worker[None]()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None  # from `start` to `close`

    # ---- any thread

    def start(self, fail: Fail) -> None:
        """Starts the event loop. `fail`: see `Sink`."""
        self._loop = asyncio.new_event_loop()
        self._worker.start(fail, generator=partial(self._run, self._loop))

    def soon(self, call: Callable[[], object]) -> None:
        """Makes a call on the event loop, in the order of `soon`; none after `close`."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(call)

    def close(self) -> None:
        """Cancels all requests and closes the connections. See `Worker.close`."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            self._worker.close(partial(loop.call_soon_threadsafe, loop.stop))

    # ---- the event loop

    def send(self, id: int, request: Coroutine[Any, Any, None]) -> None:
        """Starts the task of a request."""
        self._requests[id] = self._begin(id, request)

    def prepare(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts another task than a request for an answer. The caller may cancel it."""
        return self._begin(None, work)

    def cancel(self, id: int) -> bool:
        """Cancels a request; returns False if it has ended."""
        task = self._requests.pop(id, None)
        return task is not None and task.cancel()

    def broke(self, id: int | None, error: Exception) -> None:
        """An unexpected error ends the try of a prompt; one of no prompt ends the service."""
        if id is None:
            self._worker.fail(error)
        else:
            self._on_error(id, error)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(self._cancel_all())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()

    async def _cancel_all(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._servers.close()

    def _begin(self, id: int | None, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, id))
        return task

    def _ended(self, id: int | None, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if id is not None and self._requests.get(id) is task:
            del self._requests[id]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.broke(id, error)

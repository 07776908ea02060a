"""Measures one LLM server each second; `plan/concurrency.py` sets its number of requests at once.

All calls are made on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from generator.llm.protocol import LlmEngine, RefusalKind
from generator.plan.concurrency import ConcurrencyController, LoadSample

SAMPLE_S = 1.0


class FoundConcurrency:
    """What the generator sees of one server since the last sample.

    `in_flight` returns the requests at the server; `on_limit` is called with each new limit.
    """

    def __init__(
        self,
        engine: LlmEngine,
        controller: ConcurrencyController,
        *,
        in_flight: Callable[[], int],
        on_limit: Callable[[int], None],
    ) -> None:
        self._engine = engine
        self._controller = controller
        self._in_flight = in_flight
        self._on_limit = on_limit
        self._pending: set[int] = set()
        self._output_tokens = self._answers = 0
        self._ttfts_us: list[int] = []
        self._is_busy = False

    def sent(self, id: int) -> None:
        """A request was sent."""
        self._pending.add(id)

    def first_token(self, id: int, ttft_us: int) -> None:
        """The answer to a request begins."""
        self._pending.discard(id)
        self._ttfts_us.append(ttft_us)

    def written(self) -> None:
        """A piece of an answer came; servers send about one piece a token."""
        self._output_tokens += 1

    def ended(self, id: int, *, is_answered: bool) -> None:
        """A request has ended: answered, refused or cancelled."""
        self._pending.discard(id)
        self._answers += is_answered

    def refused(self, kind: RefusalKind) -> None:
        """The server refused a request."""
        self._is_busy |= kind == "busy"

    async def run(self) -> None:
        """Samples each second, without end."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            await self.sample()

    async def sample(self) -> None:
        """Takes one sample."""
        load = await self._engine.load()
        sample = LoadSample(
            in_flight=self._in_flight(),
            pending=len(self._pending),
            output_tokens=self._output_tokens,
            answers=self._answers,
            ttfts_us=tuple(self._ttfts_us),
            is_busy=self._is_busy,
            load=load,
        )
        self._output_tokens = self._answers = 0
        self._ttfts_us.clear()
        self._is_busy = False
        before = self._controller.limit
        # The clock of the event loop: it never jumps.
        limit = self._controller.step(sample, int(asyncio.get_running_loop().time() * 1_000_000))
        if limit != before:
            self._on_limit(limit)

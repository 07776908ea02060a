"""The LLM stand-in with the steps of a measured server: continuous batching, as in vLLM.

A step computes parts of prompts and one token of each text. The times are those of SmolLM2 135M in
vLLM 0.32 on two cores: 64 ms a step, 1.35 ms a token of a prompt, 7 ms a text. `speed` divides
them; 0 answers at once. With a prefix cache, which forgets nothing, tokens that an earlier prompt
began with take no time. Texts are made of the words of the prompt.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from carpool.testing.llm_api import ChatRequest
from carpool.testing.llm_server import LlmServer
from carpool.testing.llm_text import prompt_text

STEP_S, PREFILL_S, DECODE_S = 0.064, 0.00135, 0.007
SEQUENCES_MAX = 32
"""Requests in a step, as vLLM's max-num-seqs."""
STEP_TOKENS_MAX = 2_048
"""Tokens of prompts in a step, as vLLM's max-num-batched-tokens."""
IDS_A_TOKEN = 1.7
"""The stand-in has 2.46 characters a token id, SmolLM2 4.2 a token, in the passages."""
MAX_TOKENS = 128


@dataclass(eq=False, slots=True)
class _Sequence:
    """A request in the server: tokens of its prompt that are left, and tokens that are written."""

    left: int
    written: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))


class SteppedLlm(LlmServer):
    """See above."""

    def __init__(self, *, port: int, speed: float, caches_prefixes: bool = False) -> None:
        super().__init__(port=port, caches_prefixes=caches_prefixes)
        self._speed = speed
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._steps: asyncio.Task[None] | None = None

    def text(self, chat: ChatRequest) -> str:
        """Returns words of the prompt, a quarter to three quarters of `max_tokens`.

        Half of the passages are good enough for `corrective`; a third of the questions have no
        next part for `multistep`.
        """
        prompt = prompt_text(chat.messages)
        drawn = random.Random(prompt)
        if prompt.endswith("Yes or no:"):
            return drawn.choice(("yes", "no"))
        if prompt.endswith("or None:") and "(none)" not in prompt and drawn.random() < 1 / 3:
            return "None"
        words = [word for word in prompt.split() if word.isalpha()]
        count = round((chat.max_tokens or MAX_TOKENS) * drawn.uniform(0.25, 0.75))
        return " ".join([*drawn.choices(words, k=count - 1), "[1]."])

    def load(self) -> tuple[int, int]:
        return len(self._running), len(self._waiting)

    async def pace(self, prompt_tokens: int) -> AsyncGenerator[None, None]:
        while not self._speed:
            yield
        one = _Sequence(left=max(1, round(prompt_tokens / IDS_A_TOKEN)))
        self._waiting.append(one)
        if self._steps is None or self._steps.done():
            self._steps = asyncio.create_task(self._run())
        try:
            yield
            while True:
                await one.written.acquire()
                yield
        finally:
            (self._running if one in self._running else self._waiting).remove(one)

    async def _run(self) -> None:
        """Works in steps, until no request is left."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while self._waiting or self._running:
            while self._waiting and len(self._running) < SEQUENCES_MAX:
                self._running.append(self._waiting.popleft())
            room, writing, decoding = STEP_TOKENS_MAX, [], 0
            for one in self._running:
                decoding += not one.left
                part = min(one.left, room)
                one.left, room = one.left - part, room - part
                if not one.left:
                    writing.append(one)
            took_s = STEP_S + (STEP_TOKENS_MAX - room) * PREFILL_S + decoding * DECODE_S
            due_s += took_s / self._speed  # not later for a busy machine
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            for one in writing:
                one.written.release()
            await asyncio.sleep(0)  # those that end leave


if __name__ == "__main__":
    port, speed, caches = sys.argv[1:]
    server = SteppedLlm(port=int(port), speed=float(speed), caches_prefixes=caches == "cache")
    asyncio.run(server.serve())

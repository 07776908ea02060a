"""The LLM stand-ins of a run: they fail on some questions, are killed, and count their calls."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from bench.core.stack import ServiceProcess
from carpool.errors import RetryableError
from carpool.testing.llm_api import LlmRequests

WARM_UP = "/warm-up"
CANARY = "/canary"
"""How the ids of requests end that are no questions."""


def calls_of(requests: LlmRequests) -> Counter[str]:
    """Returns the requests for an answer that `started`, and those that the load made fail.

    And the completed `warm_ups`: these only warm the prefix cache, and are no others. Canaries are
    left out.
    """

    def of(ids: Counter[str], *ends: str) -> int:
        return sum(count for id, count in ids.items() if id.endswith(ends))

    return Counter(
        started=requests.started - of(requests.started_by_id, WARM_UP, CANARY),
        faulted=requests.faulted,
        warm_ups=of(requests.completed_by_id, WARM_UP),
    )


class LlmStandIn:
    """A stand-in that can be killed: what it was told and has counted outlives the process.

    Calls that reach it in the last milliseconds before its end may be missing in the counts. Every
    method raises `RetryableError` when it does not answer.
    """

    def __init__(self, process: ServiceProcess) -> None:
        self._process = process
        self._command = process.command
        self._before = Counter[str]()
        self._lock = threading.Lock()
        self.start, self.is_up = process.start, process.is_up

    @property
    def is_running(self) -> bool:
        """Whether the process exists."""
        return self._process.is_running

    def in_flight(self) -> int:
        """Returns the requests that it has; 0 when it does not answer."""
        try:
            return self._requests().in_flight
        except RetryableError:
            return 0

    def calls(self) -> Counter[str]:
        """Returns the counts so far, see `calls_of`."""
        return self._before + calls_of(self._requests())

    def break_on(self, words: Mapping[str, int]) -> None:
        """Makes it fail so many times on prompts with these words."""
        with self._lock:
            self._page("/_broken", msgspec.json.encode(dict(words)))

    def answer_as(self, mode: str) -> None:
        """Sets the `LlmFault` of its answers."""
        self._page("/_faults", msgspec.json.encode({"mode": mode}))

    def kill(self) -> None:
        """Ends it as a crash does."""
        with self._lock:
            self._before = self.calls()
            left = self._page("/_broken", b"{}")
            self._process.command = (*self._command, "--broken", left)
            self._process.kill()

    def _requests(self) -> LlmRequests:
        return msgspec.json.decode(
            self._page("/_requests"), type=LlmRequests, dec_hook=lambda _, counts: Counter(counts)
        )

    def _page(self, path: str, body: bytes | None = None) -> str:
        status, text = self._process.page(path, body)
        if status != 200:
            raise RetryableError(f"the LLM stand-in does not answer: {text}")
        return text


def break_on(stand_ins: Sequence[LlmStandIn], words: Mapping[str, int]) -> None:
    """Makes stand-ins fail on prompts with these words, in all so many times."""
    count = len(stand_ins)
    for number, each in enumerate(stand_ins):
        each.break_on({word: (times + number) // count for word, times in words.items()})

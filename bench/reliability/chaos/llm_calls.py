"""Calls of the LLM stand-ins: how many there were."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Mapping, Sequence

import msgspec

from bench.core.stack import LOOPBACK, ServiceProcess
from carpool.errors import RetryableError

TIMEOUT_S = 10.0
WARM_UP = "/warm-up"
"""How the id of a warm-up's request ends."""


class LlmCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Requests for an answer that reached stand-ins. `faulted`: the load made them fail.

    `warm_ups`: completed requests that only warm the prefix cache; they are no others.
    """

    started: int = 0
    faulted: int = 0
    warm_ups: int = 0

    def __add__(self, other: LlmCalls) -> LlmCalls:
        return LlmCalls(
            started=self.started + other.started,
            faulted=self.faulted + other.faulted,
            warm_ups=self.warm_ups + other.warm_ups,
        )


class StandInRequests(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of the stand-in's `LlmRequests`."""

    in_flight: int = 0
    started: int
    faulted: int
    started_by_id: dict[str, int]
    completed_by_id: dict[str, int]


class LlmStandIn:
    """A stand-in that can be killed: what it was told and has counted outlives the process.

    Calls that reach it in the last milliseconds before its end may be missing in the counts.
    """

    def __init__(self, process: ServiceProcess) -> None:
        self._process = process
        self._command = process.command
        self._before = LlmCalls()
        self._lock = threading.Lock()
        self.start, self.pause, self.resume = process.start, process.pause, process.resume

    @property
    def is_running(self) -> bool:
        """See `FaultTarget`."""
        return self._process.is_running

    def is_up(self) -> bool:
        """Returns whether it answers."""
        return self._process.page("/health")[0] == 200

    def in_flight(self) -> int:
        """Returns the requests that it has; 0 when it does not answer."""
        try:
            return self._requests().in_flight
        except RetryableError:
            return 0

    def calls(self) -> LlmCalls:
        """Returns the counts so far. Raises `RetryableError` when it does not answer."""
        return self._before + calls_in(self._requests())

    def break_on(self, words: Mapping[str, int]) -> None:
        """Makes it fail so many times on prompts with these words.

        Raises `RetryableError` when it does not answer.
        """
        with self._lock:
            self._page("/_broken", msgspec.json.encode(dict(words)))

    def answer_as(self, mode: str) -> None:
        """Sets the `LlmFault` of its answers. Raises `RetryableError` when it does not answer."""
        self._page("/_faults", msgspec.json.encode({"mode": mode}))

    def kill(self) -> None:
        """Ends it as a crash does."""
        with self._lock:
            self._before = self.calls()
            left = self._page("/_broken", b"{}").decode()
            self._process.command = (*self._command, "--broken", left)
            self._process.kill()

    def _requests(self) -> StandInRequests:
        return msgspec.json.decode(self._page("/_requests"), type=StandInRequests)

    def _page(self, path: str, body: bytes | None = None) -> bytes:
        url = f"http://{LOOPBACK}:{self._process.port}{path}"
        try:
            with urllib.request.urlopen(url, body, timeout=TIMEOUT_S) as reply:
                return bytes(reply.read())
        except OSError as error:
            raise RetryableError(f"the LLM stand-in does not answer: {error}") from error


def break_on(stand_ins: Sequence[LlmStandIn], words: Mapping[str, int]) -> None:
    """Makes stand-ins fail on prompts with these words, in all so many times.

    Raises `RetryableError` when one does not answer.
    """
    count = len(stand_ins)
    for number, each in enumerate(stand_ins):
        each.break_on({word: (times + number) // count for word, times in words.items()})


def calls_of(stand_ins: Sequence[LlmStandIn]) -> LlmCalls:
    """Returns the counts of all so far. Raises `RetryableError` when one does not answer."""
    return sum((each.calls() for each in stand_ins), LlmCalls())


def calls_in(requests: StandInRequests) -> LlmCalls:
    """Returns the counts of one process."""

    def warm_ups(ids: Mapping[str, int]) -> int:
        return sum(count for id, count in ids.items() if id.endswith(WARM_UP))

    return LlmCalls(
        started=requests.started - warm_ups(requests.started_by_id),
        faulted=requests.faulted,
        warm_ups=warm_ups(requests.completed_by_id),
    )

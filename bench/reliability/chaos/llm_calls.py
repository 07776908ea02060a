"""Calls of the LLM: how many there were, and how many the faults may have repeated."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from bench.core.stack import LOOPBACK, ServiceProcess

TIMEOUT_S = 10.0


class LlmCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Requests for a completion that reached the stand-in. `faulted`: the load made them fail."""

    started: int
    faulted: int


def calls_of(stand_in: ServiceProcess) -> LlmCalls:
    """Returns the counts of the stand-in so far. Raises `OSError`."""
    url = f"http://{LOOPBACK}:{stand_in.port}/_requests"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply:
        return msgspec.json.decode(reply.read(), type=LlmCalls)


def break_on(stand_in: ServiceProcess, words: Mapping[str, int]) -> None:
    """Makes the stand-in fail so many times on prompts with these words. Raises `OSError`."""
    url = f"http://{LOOPBACK}:{stand_in.port}/_broken"
    body = json.dumps(dict(words)).encode()
    urllib.request.urlopen(url, body, timeout=TIMEOUT_S).close()


class CallsAtRisk:
    """What the generators have in flight, over the time of the run.

    A fault may repeat as many calls as were in flight at some time from that fault until the next.
    """

    def __init__(self) -> None:
        self._samples: list[tuple[float, int]] = []

    def note(self, at_s: float, in_flight: int) -> None:
        """Adds a sample. Times grow."""
        self._samples.append((at_s, in_flight))

    def allowed(self, faults_s: Sequence[float]) -> int:
        """Returns how many calls faults at these times may have repeated, exits included."""
        times = sorted(faults_s)
        total = 0
        for begin_s, end_s in pairwise([*times, float("inf")]):
            before = [count for at_s, count in self._samples if at_s <= begin_s][-1:]
            during = [count for at_s, count in self._samples if begin_s < at_s <= end_s]
            total += max([*before, *during], default=0)
        return total

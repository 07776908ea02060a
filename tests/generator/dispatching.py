"""The dispatcher, driven by commands of a transcript.

`new` begins with another dispatcher, `open` with one whose server has passed a check.
`TIME EVENT [ids] [option=value]` is one step at TIME, in microseconds. Its output is the actions,
and the state after the step.
"""

from __future__ import annotations

from dataclasses import replace

from generator.plan.dispatch import (
    CheckPassed,
    Dispatcher,
    DispatchEvent,
    DispatchLimits,
    PromptArrived,
    PromptsRevoked,
    RequestAccepted,
    RequestEnded,
    RequestRefused,
    TimePassed,
)
from generator.plan.order import Prompt

LIMITS = DispatchLimits(
    concurrency=2,
    prompts_max=5,
    backoff_us_min=100,
    backoff_us_max=1_000,
    retry_after_us_max=5_000,
    failures_max=2,
)


class DispatchTranscript:
    """Executes the commands of one transcript."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher(LIMITS)

    def execute(self, command: str) -> list[str]:
        """Returns the actions of a command, one a line, and the state."""
        first, *words = command.split()
        options = {
            name: int(value) for name, _, value in (word.partition("=") for word in words) if value
        }
        if first in ("new", "open"):
            self.dispatcher = Dispatcher(replace(LIMITS, **options))
            if first == "open":
                self.dispatcher.step(TimePassed(), 0)
                self.dispatcher.step(CheckPassed(), 0)
            return []
        kind, *arguments = (word for word in words if "=" not in word)
        ids = [int(argument) for argument in arguments if argument.isdigit()]
        now_us = int(first)
        output = []
        for event in _events(kind, ids, options, "suspect" in arguments, now_us):
            actions = self.dispatcher.step(event, now_us)
            self.dispatcher.check_integrity()
            output += [
                f"{type(action).__name__} " + " ".join(str(getattr(action, name)) for name in names)
                if (names := action.__slots__)
                else type(action).__name__
                for action in actions
            ]
        return [*output, self._state()]

    def _state(self) -> str:
        one = self.dispatcher
        return (
            f"{one.server}: {one.prompts} prompts, {one.in_flight} in flight, "
            f"credit {one.credit()}, wakes at {one.wake_us()}"
        )


def _events(
    kind: str, ids: list[int], options: dict[str, int], suspect: bool, now_us: int
) -> list[DispatchEvent]:
    match kind:
        case "arrive":
            prompts = (Prompt(id=id, arrival_us=now_us, **options) for id in ids)
            return [PromptArrived(prompt=prompt) for prompt in prompts]
        case "accept":
            return [RequestAccepted(id=id) for id in ids]
        case "end":
            return [RequestEnded(id=id) for id in ids]
        case "refuse":
            refused = ids or [None]
            return [RequestRefused(id=id, suspect=suspect, **options) for id in refused]
        case "pass":
            return [CheckPassed()]
        case "revoke":
            return [PromptsRevoked(ids=frozenset(ids))]
        case "wait":
            return [TimePassed()]
    raise ValueError(f"no event {kind!r}")

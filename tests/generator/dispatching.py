"""The dispatcher and its events, in few words."""

from __future__ import annotations

from generator.plan.dispatch import Action, Arrived, Check, CheckPassed, Dispatcher, Limits, Ticked
from generator.plan.order import Prompt

LIMITS = Limits(
    concurrency=2,
    in_hand_max=5,
    backoff_us_min=100,
    backoff_us_max=1_000,
    retry_after_us_max=5_000,
    failures_max=2,
)


def opened(limits: Limits = LIMITS) -> Dispatcher:
    """A dispatcher whose server has answered a check."""
    dispatcher = Dispatcher(limits)
    assert dispatcher.step(Ticked(), 0) == (Check(),)
    assert dispatcher.step(CheckPassed(), 0) == ()
    return dispatcher


def arrive(
    dispatcher: Dispatcher, *ids: int, now_us: int = 0, deadline_us: int | None = None
) -> list[Action]:
    actions: list[Action] = []
    for id in ids:
        prompt = Prompt(id=id, arrival_us=now_us, deadline_us=deadline_us)
        actions += dispatcher.step(Arrived(prompt=prompt), now_us)
    return actions

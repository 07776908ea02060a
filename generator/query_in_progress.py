"""A query in the generator's hands, from the retrieval that came in to what its last request came
to.
"""

from __future__ import annotations

from dataclasses import dataclass

from carpool.loop.stage import Unit
from generator.answers import Generated, Timings
from generator.llm.protocol import PromptRefused
from generator.plan.dispatch import DispatchLimits
from generator.plan.order import Prompt
from generator.prompts import PreparedPrompt
from generator.settings import GeneratorSettings, LlmSettings
from schemas.retrieval import Retrieval
from schemas.topics import priority_in_class


@dataclass(kw_only=True, slots=True)
class QueryInProgress:
    """A query in hand. `outcome` is what its last request came to, `trouble` why its last try came
    to nothing.
    """

    unit: Unit[Retrieval]
    prepared: PreparedPrompt
    arrived_us: int
    sent_us: int | None = None
    first_token_us: int | None = None
    outcome: Generated | PromptRefused | None = None
    trouble: str = "it was not sent yet"

    def timings(self, ended_us: int) -> Timings:
        """Returns when what happened, for a query that ends now."""
        return Timings(
            arrived_us=self.arrived_us,
            sent_us=self.sent_us,
            first_token_us=self.first_token_us,
            ended_us=ended_us,
        )


def prompt_of(unit: Unit[Retrieval], arrived_us: int) -> Prompt:
    """Returns a unit as the dispatcher sees it."""
    retrieval = unit.record
    return Prompt(
        id=unit.id,
        arrival_us=arrived_us,
        priority=priority_in_class(retrieval.source.topic, retrieval.query.priority),
        deadline_us=deadline_us_of(retrieval),
    )


def deadline_us_of(retrieval: Retrieval) -> int | None:
    """Returns when a query's answer comes too late, in epoch microseconds: as the grouper reckoned
    it, else as published.
    """
    if retrieval.deadline_us is None and retrieval.query.deadline is not None:
        return retrieval.query.deadline * 1_000
    return retrieval.deadline_us


def limits_of(settings: GeneratorSettings, llm: LlmSettings) -> DispatchLimits:
    """Returns the dispatcher's bounds."""
    return DispatchLimits(
        concurrency=settings.concurrency,
        prompts_max=settings.intake_records_max,
        backoff_us_min=llm.backoff_ms_min * 1_000,
        backoff_us_max=llm.backoff_ms_max * 1_000,
        retry_after_us_max=llm.retry_after_ms_max * 1_000,
        failures_max=llm.failures_max,
    )

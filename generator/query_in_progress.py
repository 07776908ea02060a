"""A query that the generator works on, and the prompt and limits that the dispatcher sees."""

from __future__ import annotations

from dataclasses import dataclass

from carpool.loop.stage import Unit
from generator.answers import Generated, Timings
from generator.llm.protocol import PromptRefused
from generator.plan.dispatch import DispatchLimits
from generator.plan.queue import Prompt
from generator.prompts import PreparedPrompt
from generator.settings import GeneratorSettings, LlmSettings
from schemas.retrieval import Retrieval
from schemas.topics import priority_in_class


@dataclass(kw_only=True, slots=True)
class QueryInProgress:
    """A query in progress. `outcome`: of its last request; `trouble`: why its last try failed."""

    unit: Unit[Retrieval]
    prepared: PreparedPrompt
    arrived_us: int
    sent_us: int | None = None
    first_token_us: int | None = None
    outcome: Generated | PromptRefused | None = None
    trouble: str = "it was not sent yet"

    def timings(self, ended_us: int) -> Timings:
        """Returns the times of a query that ends at `ended_us`."""
        return Timings(
            arrived_us=self.arrived_us,
            sent_us=self.sent_us,
            first_token_us=self.first_token_us,
            ended_us=ended_us,
        )


def prompt_of(unit: Unit[Retrieval], arrived_us: int) -> Prompt:
    """Returns the prompt of a unit, as the dispatcher sees it."""
    retrieval = unit.record
    return Prompt(
        id=unit.id,
        arrival_us=arrived_us,
        priority=priority_in_class(retrieval.source.topic, retrieval.query.priority),
        deadline_us=deadline_us_of(retrieval),
    )


def deadline_us_of(retrieval: Retrieval) -> int | None:
    """Returns the deadline in epoch microseconds: the grouper's, else the published one."""
    if retrieval.deadline_us is None and retrieval.query.deadline is not None:
        return retrieval.query.deadline * 1_000
    return retrieval.deadline_us


def limits_of(settings: GeneratorSettings, llm: LlmSettings) -> DispatchLimits:
    """Returns the limits of the dispatcher."""
    return DispatchLimits(
        concurrency=settings.concurrency,
        prompts_max=settings.intake_records_max,
        backoff_us_min=llm.backoff_ms_min * 1_000,
        backoff_us_max=llm.backoff_ms_max * 1_000,
        retry_after_us_max=llm.retry_after_ms_max * 1_000,
        failures_max=llm.failures_max,
    )

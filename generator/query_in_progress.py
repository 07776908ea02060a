"""A prompt that the generator works on, of a query or of a step: its progress and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from carpool.loop.stage import Done, Operation, Unit
from carpool.workflow.steps import Generate
from generator.llm.protocol import LlmFinished, PromptRefused
from generator.plan.answer_text import Written
from generator.prompts import PreparedPrompt
from schemas.retrieval import Retrieval
from schemas.workflow import StepResult


@dataclass(kw_only=True, slots=True)
class QueryProgress:
    """The requests of a query so far. Times are epoch microseconds; None: it did not happen.

    `sent_us` and `first_token_us` are those of the last request, `trouble` is why the last one that
    failed did. `searches`: spans of the searches of a workflow that have just ended.
    """

    arrived_us: int
    attempts: int = 0
    sent_us: int | None = None
    first_token_us: int | None = None
    trouble: str | None = None
    searches: tuple[Operation, ...] = ()


class Generated(NamedTuple):
    """The result of one request."""

    generation_id: str
    written: Written
    finished: LlmFinished


class Answered(NamedTuple):
    """Status and timings of an answer, and the finished work that it is handed over as."""

    status: str | None
    timings_ms: Mapping[str, float]
    done: Done


@dataclass(kw_only=True, slots=True)
class StepTexts:
    """The texts of a round. `results`: of those that are written, by place.

    `is_over`: the unit has ended, so the other texts are forgotten.
    """

    steps: tuple[Generate, ...]
    results: dict[int, StepResult] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    is_over: bool = False


@dataclass(kw_only=True, slots=True)
class QueryInProgress:
    """A prompt in progress. `server` and `outcome` are those of its last request.

    `id` is that of its unit, unless the prompt is one of several `texts` of a workflow, at `place`
    among them.

    `prompt_key`: None if its answer, or its text for a step, is not given to equal prompts.
    `token_ids`: its prompt; empty while they are not known, and where text is sent.
    """

    id: int
    unit: Unit[Retrieval]
    prepared: PreparedPrompt
    progress: QueryProgress
    texts: StepTexts | None = None
    place: int = 0
    prompt_key: str | None = None
    token_ids: tuple[int, ...] = ()
    server: int = 0
    outcome: Answered | PromptRefused | StepResult | None = None

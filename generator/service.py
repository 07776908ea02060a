"""The generator as a stage: takes retrievals, asks the model, and hands over answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

import msgspec

from carpool.clock import Clock
from carpool.kafka.records import TopicPartition
from carpool.loop.stage import Credit, Sink, Stage, Unit
from carpool.telemetry.metrics import Metrics
from carpool.workflow.load import load_workflows
from carpool.workflow.program import NextSteps
from carpool.workflow.running import RunningPrograms
from carpool.workflow.settings import WorkflowSettings
from carpool.workflow.steps import AnswerStep, Generate
from carpool.workflow.workflows import Workflows
from generator.answers import extracted, written_before
from generator.llm.servers import LlmServers
from generator.outcomes import Outcomes
from generator.plan.next_round import GenerateNext, SearchNext, next_round, with_found
from generator.plan.prompt import Template
from generator.prompts import PreparedPrompt, load_templates, prepare_prompt, reusable_key
from generator.prompts_in_progress import PromptsInProgress
from generator.query_in_progress import QueryInProgress, QueryProgress, StepTexts
from generator.settings import PROMPTS_A_SERVER, GeneratorSettings, LlmSettings
from generator.tracing import search_spans
from generator.warmer import Warmed
from schemas.errors import RecordError
from schemas.query import finished_steps
from schemas.retrieval import Retrieval

INTAKE_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of the records that wait or are in flight; more than the largest record has."""
NO_MODEL = (
    "workflow: it generates texts before its answer, and this deployment has no model "
    "(llm.engine); ask without `workflow`"
)


def build_stage(
    settings: GeneratorSettings,
    llm: LlmSettings,
    metrics: Metrics,
    clock: Clock,
    workflow: WorkflowSettings | None = None,
) -> GeneratorStage:
    """Returns the stage. Raises `ConfigError` for a template or a workflow that cannot be used.

    The servers, none without a model, are first checked in `start`; `not_ready` reports the result.
    """
    servers = LlmServers(())
    if llm.engine != "none":
        from generator.llm.openai_api import OpenAiLlm  # its HTTP library is not small

        settings_of_each = [msgspec.structs.replace(llm, base_url=url) for url in llm.base_urls()]
        servers = LlmServers([OpenAiLlm(each) for each in settings_of_each])
    workflows = load_workflows(workflow or WorkflowSettings())
    templates = load_templates(settings)
    return GeneratorStage(settings, llm, templates, servers, workflows, metrics, clock)


class GeneratorStage(Stage[Retrieval]):
    """While all LLM servers refuse, `credit` is zero, the queries in progress are kept, and
    `not_ready` says why.
    """

    def __init__(
        self,
        settings: GeneratorSettings,
        llm: LlmSettings,
        templates: Mapping[str, Template],
        servers: LlmServers,
        workflows: Workflows,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._templates = templates
        self._model = llm.model
        self._has_model = llm.engine != "none"
        self._metrics = metrics
        self._clock = clock
        self._step_ids = count(-1, -1)  # of prompts of steps: no unit has such an id
        self._programs = RunningPrograms(workflows, self._charge)
        self._outcomes = Outcomes(
            servers, settings, llm.model, metrics, clock, self._note_warmth, self._programs
        )
        self._prompts = PromptsInProgress(
            servers, settings, llm, self._outcomes, self._try_to_fill, self._charge, metrics, clock
        )
        self.hasten = self._prompts.hasten

    # ---- the polling thread

    def start(self, sink: Sink) -> None:
        """Starts the event loop, which checks the servers."""
        self._outcomes.sink = sink
        self._prompts.start()

    def credit(self) -> Credit:
        """Returns room for retrievals; none while all servers refuse."""
        if self._prompts.is_draining:
            return Credit(records=0, size_bytes=0)
        records = self._prompts.credit() if self._has_model else PROMPTS_A_SERVER
        return self._programs.left_of(records, INTAKE_BYTES_MAX - self._prompts.size_bytes)

    def offer(self, unit: Unit[Retrieval], now_us: int) -> None:
        """Takes a retrieval. One that needs no model, or allows no prompt, is answered at once."""
        progress = QueryProgress(arrived_us=now_us)
        with self._outcomes.ending(unit, progress):
            if unit.record.query.journal is None:
                self._answer(unit, progress, None)
                return
            unit = replace(unit, record=self._with_found(unit.record, progress))
            self._outcomes.run_program(unit, progress, partial(self._do_round, unit, progress))

    def _do_round(self, unit: Unit[Retrieval], progress: QueryProgress, wanted: NextSteps) -> None:
        """Does what a program has asked for. Raises `WorkflowError` and `RecordError`."""
        now_us = self._clock.now_us()
        todo = next_round(unit.record, wanted, now_us)
        if isinstance(todo, SearchNext):
            self._outcomes.go_on(unit, todo, now_us, progress.searches)
        elif isinstance(todo, GenerateNext):
            self._generate(unit, todo, progress)
        else:
            self._answer(replace(unit, record=todo.retrieval), progress, todo.answer)

    def _with_found(self, retrieval: Retrieval, progress: QueryProgress) -> Retrieval:
        """Returns a record whose journal has the results of the searches that it brings."""
        now_us = progress.arrived_us
        found = with_found(retrieval, now_us)
        searches = finished_steps(found.query) - finished_steps(retrieval.query)
        self._metrics.workflow.steps.labels(kind="retrieve").inc(searches)
        progress.searches = search_spans(retrieval, searches, now_us)
        self._outcomes.tell_steps(retrieval, found.query, now_us)
        return found

    def _answer(
        self, unit: Unit[Retrieval], progress: QueryProgress, step: AnswerStep | None
    ) -> None:
        """Answers a query, or a workflow as `step` says. Raises `RecordError`."""
        retrieval = unit.record
        if step is not None and step.is_written:
            self._outcomes.give(unit, written_before(retrieval, step.written, progress), progress)
            return
        prepared = self._fill(retrieval, step)
        if prepared.is_extractive:
            self._outcomes.give(unit, extracted(retrieval, prepared, progress), progress)
            return
        work = QueryInProgress(
            id=unit.id,
            unit=unit,
            prepared=prepared,
            progress=progress,
            prompt_key=self._key(retrieval, prepared),
        )
        warmer = self._prompts.warmer
        self._prompts.add(work, warmed_at=warmer.server_of(retrieval.source.place))
        self._prompts.soon(partial(warmer.searched, retrieval))

    def _generate(self, unit: Unit[Retrieval], todo: GenerateNext, progress: QueryProgress) -> None:
        """Generates the texts of a round, side by side. Raises `RecordError`."""
        if not self._has_model:
            raise RecordError("unsupported", NO_MODEL, field="$.workflow")
        asked = [todo.retrieval_of(step) for step in todo.steps]
        prepared = [self._fill(*each) for each in zip(asked, todo.steps, strict=True)]
        texts = StepTexts(steps=todo.steps, operations=list(progress.searches))
        for place, each in enumerate(prepared):
            work = QueryInProgress(
                id=next(self._step_ids),
                unit=unit,
                prepared=each,
                progress=QueryProgress(arrived_us=progress.arrived_us),
                texts=texts,
                place=place,
                prompt_key=self._key(asked[place], each),
            )
            self._prompts.add(work)

    def prompt_key(self, retrieval: Retrieval) -> str | None:
        """See `generator.dedup.prompt_stage`."""
        prepared = self._try_to_fill(retrieval)
        return None if prepared is None else self._key(retrieval, prepared)

    def draft(self, draft: Retrieval) -> None:
        """See `generator.dedup.prompt_stage`."""
        self._prompts.soon(partial(self._prompts.warmer.draft, draft))

    def cancel(self, unit_id: int) -> None:
        """See `generator.dedup.prompt_stage`."""
        self._outcomes.cancel_program(unit_id)
        self._prompts.cancel(unit_id)

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        """Expires what is late, and ends pauses."""
        self._outcomes.expire_programs(now_us)
        return self._prompts.tick(now_us, is_busy=self._programs.records > 0)

    def revoke(self, unit_ids: frozenset[int], partitions: frozenset[TopicPartition]) -> None:
        """Forgets queries, and cancels their requests."""
        self._programs.forget(unit_ids)
        self._prompts.revoke(unit_ids)

    def drain(self, until_us: int) -> None:
        """Takes no more retrievals; the queries in progress continue."""
        self._prompts.is_draining = True

    def not_ready(self) -> Sequence[str]:
        """See `PromptsInProgress`."""
        return self._prompts.not_ready()

    def notes(self) -> Sequence[str]:
        """See `PromptsInProgress`."""
        return self._prompts.notes()

    def close(self) -> None:
        """Cancels the requests in flight, and closes the connections."""
        self._prompts.close()

    # ---- any thread

    def _fill(self, retrieval: Retrieval, step: Generate | None = None) -> PreparedPrompt:
        """Returns the prompt of a retrieval. Raises `RecordError` where there can be none."""
        return prepare_prompt(
            retrieval,
            self._settings,
            self._templates,
            model=self._model if self._has_model else None,
            step=step,
        )

    def _try_to_fill(self, retrieval: Retrieval) -> PreparedPrompt | None:
        """Returns the prompt; None: no model gets one, or a program decides about it."""
        if retrieval.query.journal is not None:
            return None
        try:
            prepared = self._fill(retrieval)
        except RecordError:
            return None  # `offer` answers it
        return None if prepared.is_extractive else prepared

    def _key(self, retrieval: Retrieval, prepared: PreparedPrompt) -> str | None:
        return reusable_key(retrieval, prepared, self._settings, self._model)

    def _charge(self, unit_id: int, error: Exception) -> None:
        self.revoke(frozenset({unit_id}), frozenset())
        self._outcomes.sink.charge(((unit_id, 0),), error)

    def _note_warmth(self, work: QueryInProgress, cached_tokens: int) -> Warmed:
        """Tells the warmer how many tokens were cached; returns what was warmed for the prompt."""
        progress, wait_us = work.progress, None
        if progress.attempts == 1 and progress.first_token_us is not None:
            wait_us = progress.first_token_us - progress.arrived_us
        place = work.unit.record.source.place
        return self._prompts.warmer.answered(place, work.token_ids, cached_tokens, wait_us)

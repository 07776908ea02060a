"""Hands over answers, pieces of answers that are written, and the next records of workflows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import msgspec

from carpool.clock import Clock
from carpool.endings import AskedQuery
from carpool.kafka.records import Output
from carpool.loop.stage import Done, LateOutputs, Operation, Sink, Unit
from carpool.telemetry.metrics import Metrics
from carpool.workflow.program import NextSteps, Ran
from carpool.workflow.running import RunningPrograms
from carpool.workflow.steps import Generate, WorkflowError
from carpool.workflow.workflows import with_results
from generator.answers import answered, asked_of, ended_early, expired
from generator.llm.protocol import LlmFinished, PromptRefused
from generator.llm.servers import LlmServers
from generator.outputs import final, next_output, partial_output
from generator.plan.dispatch_events import QueryEnd
from generator.plan.next_round import Round, next_round
from generator.prompts import PreparedPrompt
from generator.query_in_progress import (
    Answered,
    Generated,
    QueryInProgress,
    QueryProgress,
    StepTexts,
)
from generator.settings import GeneratorSettings
from generator.tracing import inference, step_span
from generator.warmer import Warmed
from schemas.answer import Answer, ErrorType, steps_done
from schemas.errors import RecordError
from schemas.headers import tenant_of
from schemas.query import Query, finished_steps
from schemas.retrieval import Retrieval
from schemas.workflow import StepResult

EarlyEnd = Callable[[AskedQuery, int], Done]
"""Makes an end of a query at a time."""


class Outcomes:
    """See the module. For any thread; `sink` is set before the first query ends."""

    sink: Sink

    def __init__(
        self,
        servers: LlmServers,
        settings: GeneratorSettings,
        model: str,
        metrics: Metrics,
        clock: Clock,
        on_answered: Callable[[QueryInProgress, int], Warmed],
        programs: RunningPrograms,
    ) -> None:
        """`on_answered` is called with a query that the model answered, and its cached tokens.

        It returns what warm-ups did for it.
        """
        self._servers = servers
        self._settings = settings
        self._model = model
        self._metrics = metrics
        self._clock = clock
        self._on_answered = on_answered
        self._programs = programs

    def end(self, how: QueryEnd, work: QueryInProgress) -> None:
        """Hands over the answer of a query that the dispatcher has ended."""
        now_us, retrieval, outcome = self._clock.now_us(), work.unit.record, work.outcome
        if work.texts is not None:
            if isinstance(outcome, StepResult) and how == "answered":
                self._written(work, work.texts, outcome, now_us)
                return
            work.texts.is_over = True
        if how == "given_up":
            self._give_up(work)
        elif how == "cancelled":
            self._end_early(work.unit, work.progress, AskedQuery.cancelled)
        elif how == "answered" and isinstance(outcome, PromptRefused):
            self.refuse(work.unit, work.progress, "llm_refused", str(outcome))
        elif how == "expired" or _is_late(retrieval, now_us):
            # A result may be late too, if the event loop was busy.
            self._expire(work.unit, work.progress)
        else:
            assert isinstance(outcome, Answered)
            self._submit(work.unit, outcome)

    def run_program(
        self, unit: Unit[Retrieval], progress: QueryProgress, then: Callable[[NextSteps], None]
    ) -> None:
        """Runs the program of a workflow, unless it is late; `then` gets what it asks for.

        What `then` raises for a workflow or a record ends it. For the polling thread, and the
        event loop; `then` may run on another thread.
        """
        retrieval = unit.record
        if _is_late(retrieval, self._clock.now_us()):
            self._expire(unit, progress)
            return

        def follow(ran: Ran) -> None:
            with self.ending(unit, progress):
                if isinstance(ran, WorkflowError):
                    raise ran
                then(ran)

        self._programs.ask(unit, retrieval.query, retrieval.deadline_us, follow)

    def expire_programs(self, now_us: int) -> None:
        """Answers the workflows whose deadline has passed before their program was run."""
        for unit in self._programs.late(now_us):
            self._expire(unit, QueryProgress(arrived_us=now_us))

    def cancel_program(self, unit_id: int) -> None:
        """Answers a workflow that is withdrawn before its program was run."""
        if (unit := self._programs.withdraw(unit_id)) is not None:
            self._end_early(
                unit, QueryProgress(arrived_us=self._clock.now_us()), AskedQuery.cancelled
            )

    def _expire(self, unit: Unit[Retrieval], progress: QueryProgress) -> None:
        self._end_early(unit, progress, lambda asked, now_us: expired(asked, progress, now_us))

    def _end_early(self, unit: Unit[Retrieval], progress: QueryProgress, end: EarlyEnd) -> None:
        """Hands over an end without an answer of the model, which `end` makes now."""
        now_us = self._clock.now_us()
        asked = asked_of(unit, progress, now_us)
        done = end(asked, now_us)
        self._submit(unit, Answered(done.early, asked.timings_ms, done))

    def go_on(
        self, unit: Unit[Retrieval], todo: Round, now_us: int, operations: Sequence[Operation] = ()
    ) -> None:
        """Writes the next record of a workflow. Raises `WorkflowError`."""
        output = next_output(todo, unit, now_us)
        self.sink.done(Done(parts=((unit.id, 0),), outputs=(output,), operations=tuple(operations)))

    @contextmanager
    def ending(self, unit: Unit[Retrieval], progress: QueryProgress) -> Iterator[None]:
        """Answers a query where a `WorkflowError` or a `RecordError` of it is raised."""
        try:
            yield
        except WorkflowError as error:
            self._end_workflow(unit, progress, error)
        except RecordError as error:
            self.refuse(unit, progress, error.reason, str(error))

    def _end_workflow(
        self, unit: Unit[Retrieval], progress: QueryProgress, error: WorkflowError
    ) -> None:
        """Answers a workflow that cannot go on: `partial` at a limit, else `failed`."""
        kind = cast(ErrorType, error.kind)
        if error.kind != "workflow_limit":
            self.refuse(unit, progress, kind, str(error))
            return

        def end(asked: AskedQuery, now_us: int) -> Done:
            answer = ended_early(asked, unit.record, kind, str(error))
            return replace(asked.ended(answer, now_us), late=self._late(unit, progress))

        self._end_early(unit, progress, end)

    def give(self, unit: Unit[Retrieval], answer: Answer, progress: QueryProgress) -> None:
        """Hands over an answer that was made without a server, when the query arrived."""
        if _is_late(unit.record, progress.arrived_us):
            self._expire(unit, progress)
        else:
            self._submit(unit, self._made(unit, answer, progress, progress.arrived_us))

    def refuse(
        self, unit: Unit[Retrieval], progress: QueryProgress, error_type: ErrorType, message: str
    ) -> None:
        """Answers `failed` a query that no server would answer; the loop adds its dead letter."""
        self._end_early(
            unit,
            progress,
            lambda asked, now_us: asked.failed(now_us, error_type, message, is_refusal=True),
        )

    def written(self, work: QueryInProgress, generation_id: str, seq: int, text: str) -> None:
        """Sends the next characters of an answer."""
        if self._settings.partials and work.texts is None:
            now_us = self._clock.now_us()
            self.sink.hint(partial_output(work.unit.record, generation_id, seq, text, now_us))

    def tell_steps(self, retrieval: Retrieval, after: Query, now_us: int) -> None:
        """Sends the steps of a workflow that have finished since a record, with their journal."""
        if self._settings.partials:
            told, steps_id = finished_steps(retrieval.query), f"{retrieval.source.place}/steps"
            for seq, step in enumerate(steps_done(after)[told:], start=told):
                self.sink.hint(partial_output(retrieval, steps_id, seq, "", now_us, step))

    def made_of(self, work: QueryInProgress, generated: Generated) -> Answered | StepResult:
        """Returns the answer that the model wrote, ready to be handed over; or a step's text."""
        finished, now_us = generated.finished, self._clock.now_us()
        if work.texts is not None:
            return self._step_result(work, work.texts, generated, now_us)
        warmed = self._on_answered(work, finished.cached_tokens)
        answer = answered(work, generated, now_us, warmed)
        self._count_citations(answer)
        asked = self._inference(work, finished, now_us)
        return self._made(work.unit, answer, work.progress, now_us, asked)

    def _inference(self, work: QueryInProgress, finished: LlmFinished, now_us: int) -> Operation:
        url = self._servers[work.server].address
        return inference(work, finished, now_us, model=self._model, url=url)

    def _count_citations(self, answer: Answer) -> None:
        counts = self._metrics.generator.citations
        for one in answer.citations:
            by_model = "unsupported" if one.quote is None else "supported"
            counts.labels(result="text" if one.by == "text" else by_model).inc()
        counts.labels(result="invented").inc(len(answer.invented_citations))

    def _step_result(
        self, work: QueryInProgress, texts: StepTexts, generated: Generated, now_us: int
    ) -> StepResult:
        finished, arrived_us = generated.finished, work.progress.arrived_us
        texts.operations.append(step_span("generate", work.unit.record.query, arrived_us, now_us))
        texts.operations.append(self._inference(work, finished, now_us))
        self._metrics.workflow.steps.labels(kind="generate").inc()
        step = texts.steps[work.place]
        return step_result(step, work.prepared, generated, now_us - arrived_us)

    def share(self, other: QueryInProgress | None, work: QueryInProgress) -> bool:
        """Gives a step the text of an equal one, of this or another workflow; False: it has none.

        `other`: None if it was revoked.
        """
        result, texts = None if other is None else other.outcome, work.texts
        if texts is None or not isinstance(result, StepResult):
            return False
        now_us, arrived_us = self._clock.now_us(), work.progress.arrived_us
        texts.operations.append(step_span("generate", work.unit.record.query, arrived_us, now_us))
        self._metrics.workflow.steps.labels(kind="shared").inc()
        tokens, tenant = result.input_tokens + result.output_tokens, work.unit.record.headers
        self._metrics.generator.tokens.add("reused", tenant_of(tenant), tokens)
        work.outcome = msgspec.structs.replace(
            result,
            digest=texts.steps[work.place].digest(),
            left_out=work.prepared.left_out,
            took_ms=(now_us - arrived_us) / 1_000,
            is_shared=True,
        )
        return True

    def _written(
        self, work: QueryInProgress, texts: StepTexts, result: StepResult, now_us: int
    ) -> None:
        """Keeps a text of a workflow, which goes on when all texts of the round are written."""
        texts.results[work.place] = result
        if len(texts.results) < len(texts.steps):
            return
        texts.is_over = True
        results = [texts.results[place] for place in range(len(texts.steps))]
        retrieval = work.unit.record
        with self.ending(work.unit, work.progress):
            query = with_results(retrieval.query, results)
            self.tell_steps(retrieval, query, now_us)
            unit = replace(work.unit, record=msgspec.structs.replace(retrieval, query=query))

            def go_on(wanted: NextSteps) -> None:
                then_us = self._clock.now_us()
                todo = next_round(unit.record, wanted, then_us)
                self.go_on(unit, todo, then_us, texts.operations)

            self.run_program(unit, work.progress, go_on)

    def _give_up(self, work: QueryInProgress) -> None:
        message = (
            "the LLM server broke off its answer to this query, or accepts other requests only, in "
            f"{work.progress.attempts} requests; the last time: "
            f"{work.progress.trouble or 'an equal prompt was refused'}"
        )
        self._end_early(
            work.unit,
            work.progress,
            lambda asked, now_us: asked.failed(now_us, "llm_refused", message, retryable=True),
        )

    def _late(self, unit: Unit[Retrieval], progress: QueryProgress) -> LateOutputs | None:
        """Returns the output in place of an answer whose commit begins after the deadline."""
        if unit.record.deadline_us is None:
            return None

        def outputs() -> tuple[Output, ...]:
            now_us = self._clock.now_us()
            return expired(asked_of(unit, progress, now_us), progress, now_us).outputs

        return LateOutputs(unit.record.deadline_us, outputs)

    def _made(
        self,
        unit: Unit[Retrieval],
        answer: Answer,
        progress: QueryProgress,
        now_us: int,
        *asked: Operation,
    ) -> Answered:
        done = final(unit, answer, now_us)
        operations, late = (*progress.searches, *asked), self._late(unit, progress)
        done = replace(done, operations=operations, late=late)
        return Answered(answer.status, answer.timings_ms, done)

    def _submit(self, unit: Unit[Retrieval], made: Answered) -> None:
        query, (status, timings_ms, done) = unit.record.query, made
        if query.journal is not None and (done.failure is None or done.failure.is_refusal):
            metrics = self._metrics.workflow
            metrics.ended.labels(program=query.journal.program, status=status).inc()
            metrics.length_steps.observe(finished_steps(query))
            metrics.length_rounds.observe(len(query.journal.rounds))
        if done.early is None:  # else the loop counts it
            self._metrics.loop.ended.labels(stage="generator", status=status).inc()
        for stage in ("queue_llm", "decode", "total"):
            if stage in timings_ms:
                seconds = timings_ms[stage] / 1_000
                self._metrics.loop.stage_seconds.labels(stage=stage).observe(seconds)
        self.sink.done(done)


def step_result(
    step: Generate, prepared: PreparedPrompt, generated: Generated, took_us: int
) -> StepResult:
    """Returns the result of a step that was written."""
    finished, text = generated.finished, generated.written.answer
    return StepResult(
        digest=step.digest(),
        # What the next record can carry, and a search can take.
        text=text.encode("utf-8", "replace").decode().replace("\x00", ""),
        is_cut=finished.finish_reason == "length",
        left_out=prepared.left_out,
        took_ms=took_us / 1_000,
        input_tokens=finished.input_tokens,
        output_tokens=finished.output_tokens,
        cached_tokens=finished.cached_tokens,
    )


def _is_late(retrieval: Retrieval, now_us: int) -> bool:
    return retrieval.deadline_us is not None and now_us >= retrieval.deadline_us

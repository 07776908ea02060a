"""The generator as a stage: takes retrievals, asks the model for up to `concurrency` of them at
once, hands over answers.

The polling thread and the event loop (`generator.llm_requests`) share the dispatcher under a lock.
Its actions are carried out by the event loop, in the order in which they were decided.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial

import structlog

from carpool.clock import Clock
from carpool.errors import CarpoolError
from carpool.kafka.records import Output, TopicPartition
from carpool.loop.stage import Credit, Done, LateOutputs, QueryFailure, Sink, Unit
from carpool.loop.tracing.operation import Operation
from carpool.telemetry.metrics import Metrics
from generator.answers import (
    Generated,
    Timings,
    answered,
    bounded_answer_output,
    not_answered,
    partial_output,
)
from generator.llm.none import NoLlm
from generator.llm.openai_api import OpenAiLlm
from generator.llm.protocol import LlmEngine, LlmRefusal
from generator.llm_requests import RequestsInFlight
from generator.plan.dispatch import (
    CancelRequest,
    CheckServer,
    DeliverAnswer,
    DispatchAction,
    Dispatcher,
    DispatchEvent,
    ExpireQuery,
    GiveUpQuery,
    PromptArrived,
    PromptsRevoked,
    RequestRefused,
    SendPrompt,
    TimePassed,
)
from generator.plan.prompt import Template
from generator.prompts import load_templates, prepare_prompt
from generator.query_in_progress import QueryInProgress, deadline_us_of, limits_of, prompt_of
from generator.settings import GeneratorSettings, LlmSettings
from generator.tracing import inference
from schemas.answer import Answer, ErrorType, Status
from schemas.errors import RecordError
from schemas.retrieval import Retrieval

log = structlog.get_logger()

WAKE_US = 50_000
"""Longest wait between two ticks while there is work: pauses begin between ticks, where the polling
thread sees none.
"""
TOO_LATE = "the deadline passed before an answer was written; ask again with a later one"


def build_stage(
    settings: GeneratorSettings, llm: LlmSettings, metrics: Metrics, clock: Clock
) -> GeneratorStage:
    """Returns the stage. Raises `ConfigError` for a prompt template that cannot be used.

    The server is not asked yet: that happens from `start` on, and `not_ready` says what came of it.
    """
    engine: LlmEngine = NoLlm() if llm.engine == "none" else OpenAiLlm(llm)
    return GeneratorStage(settings, llm, load_templates(settings), engine, metrics, clock)


class GeneratorStage:
    """Implements `Stage[Retrieval]`; see `carpool.loop.stage` for what each method promises.

    While the LLM server refuses, nothing is taken in (`credit` is zero), what is in hand is kept,
    and `not_ready` says why.
    """

    def __init__(
        self,
        settings: GeneratorSettings,
        llm: LlmSettings,
        templates: Mapping[str, Template],
        engine: LlmEngine,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._templates = templates
        self._engine = engine
        self._model = llm.model
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._dispatcher = Dispatcher(limits_of(settings, llm))
        self._work: dict[int, QueryInProgress] = {}
        self._in_hand_bytes = 0
        self._trouble = "has not answered yet"
        self._is_draining = False
        self._is_closed = False
        self._requests = RequestsInFlight(engine, self, metrics, clock)
        self._sink: Sink | None = None

    # ---- the polling thread

    def start(self, sink: Sink) -> None:
        """Starts the event loop, which asks the server whether it has the model."""
        self._sink = sink
        self._requests.start()
        self.happened(TimePassed())

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Nothing: what is known of partitions lies with their units."""

    def credit(self) -> Credit:
        """Returns room for retrievals; none while the server refuses."""
        with self._lock:
            if self._is_draining:
                return Credit(records=0, size_bytes=0)
            return Credit(
                records=max(0, self._dispatcher.credit()),
                size_bytes=max(0, self._settings.intake_bytes_max - self._in_hand_bytes),
            )

    def offer(self, unit: Unit[Retrieval], now_us: int) -> None:
        """Takes a retrieval. What cannot be asked of any model is answered `failed` at once."""
        retrieval = unit.record
        try:
            prepared = prepare_prompt(retrieval, self._settings, self._templates)
        except RecordError as error:
            timings = Timings(arrived_us=now_us, ended_us=now_us)
            answer = not_answered(
                retrieval,
                timings,
                status="failed",
                error_type=error.reason,
                message=str(error),
                retryable=False,
            )
            self._hand_over(unit, answer, now_us)
            return
        with self._lock:
            self._work[unit.id] = QueryInProgress(unit=unit, prepared=prepared, arrived_us=now_us)
            self._in_hand_bytes += unit.message.size_bytes
        self.happened(PromptArrived(prompt=prompt_of(unit, now_us)))

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        """Expires what is late, and ends pauses."""
        self.happened(TimePassed())
        with self._lock:
            wake_us = self._dispatcher.wake_us()
            is_idle = self._dispatcher.server == "open" and not self._dispatcher.prompts
        soon_us = now_us + WAKE_US
        return wake_us if is_idle else min(soon_us, wake_us if wake_us is not None else soon_us)

    def revoke(self, unit_ids: frozenset[int]) -> None:
        """Forgets queries, and breaks off their requests."""
        with self._lock:
            for unit_id in unit_ids:
                self._forget(unit_id)
        self.happened(PromptsRevoked(ids=unit_ids))

    def drain(self, until_us: int) -> None:
        """Takes nothing more; what is in hand goes on."""
        with self._lock:
            self._is_draining = True

    def not_ready(self) -> Sequence[str]:
        """Returns what the server refuses with, unless it takes work."""
        with self._lock:
            if self._dispatcher.server == "open":
                return ()
            return (f"LLM server at {self._engine.address} {self._trouble}",)

    def close(self) -> None:
        """Breaks off what still runs, and closes the connections."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._requests.close()

    # ---- both threads

    def happened(self, event: DispatchEvent) -> None:
        """Has the planner decide, and the event loop do, in the same order."""
        with self._lock:
            if self._is_closed:
                return
            actions = self._dispatcher.step(event, self._clock.now_us())
            if actions:
                self._requests.soon(partial(self._act, actions))

    def _forget(self, unit_id: int) -> QueryInProgress | None:
        """Lets go of a query. The lock is held."""
        work = self._work.pop(unit_id, None)
        if work is not None:
            self._in_hand_bytes -= work.unit.message.size_bytes
        return work

    def _hand_over(
        self,
        unit: Unit[Retrieval],
        answer: Answer,
        now_us: int,
        operations: tuple[Operation, ...] = (),
        failure: QueryFailure | None = None,
        late: LateOutputs | None = None,
    ) -> None:
        assert self._sink is not None, "a stage is started before it is offered anything"
        if failure is None:  # else it is counted once it is decided whether it is tried again
            self._metrics.loop.answers.labels(stage="generator", status=answer.status).inc()
        for stage in ("queue_llm", "decode", "total"):
            if stage in answer.timings_ms:
                self._metrics.loop.stage_seconds.labels(stage=stage).observe(
                    answer.timings_ms[stage] / 1_000
                )
        output = bounded_answer_output(answer, unit.record.headers, now_us)
        self._sink.done(
            Done(
                parts=((unit.id, 0),),
                outputs=(output,),
                operations=operations,
                failure=failure,
                late=late,
            )
        )

    # ---- the event loop

    def _act(self, actions: tuple[DispatchAction, ...]) -> None:
        try:
            for action in actions:
                self._do(action)
        except Exception as error:  # the event loop would log it, and go on without the query
            self.broke(error)

    def _do(self, action: DispatchAction) -> None:
        match action:
            case SendPrompt(id=id):
                self._send(id)
            case CheckServer():
                self._requests.check()
            case CancelRequest(id=id):
                self._requests.cancel(id)
            case ExpireQuery(id=id, attempts=attempts):
                self._end(id, "expired", "expired", TOO_LATE, attempts)
            case GiveUpQuery(id=id, attempts=attempts):
                message = (
                    "the LLM server answers others, and did not answer this query in "
                    f"{attempts} tries"
                )
                self._end(id, "failed", "llm_refused", message, attempts, add_trouble=True)
            case DeliverAnswer(id=id, attempts=attempts):
                self._deliver(id, attempts)

    def _send(self, id: int) -> None:
        with self._lock:
            work = self._work.get(id)
        if work is not None:  # else it was revoked meanwhile, and a CancelRequest follows
            self._requests.send(id, work)

    def broke(self, error: Exception) -> None:
        """Ends the service over an error that nobody foresaw: going on would lose a query
        silently.
        """
        log.error("a request failed in a way that was not foreseen", exc_info=error)
        assert self._sink is not None
        what = f"{type(error).__name__}: {error}"
        self._sink.fail(
            CarpoolError(
                f"the generator failed over a query ({what}); the log says where. Nothing is lost."
            )
        )

    def written(self, work: QueryInProgress, generation_id: str, seq: int, text: str) -> None:
        """See `generator.requests.RequestListener`."""
        if not self._settings.partials:
            return
        assert self._sink is not None
        self._sink.hint(
            partial_output(work.unit.record, generation_id, seq, text, self._clock.now_us())
        )

    def refused(self, id: int | None, refusal: LlmRefusal) -> None:
        """See `generator.requests.RequestListener`."""
        trouble = f"refuses: {refusal}"
        with self._lock:
            is_news, self._trouble = trouble != self._trouble, trouble
        if is_news:
            log.warning(
                "the LLM server refuses",
                address=self._engine.address,
                kind=refusal.kind,
                refusal=str(refusal),
            )
        asked_us = None if refusal.retry_after_s is None else int(refusal.retry_after_s * 1_000_000)
        self.happened(RequestRefused(id=id, retry_after_us=asked_us, suspect=refusal.is_suspect))

    def _deliver(self, id: int, attempts: int) -> None:
        with self._lock:
            work = self._work.get(id)
        if work is None:
            return
        if not isinstance(work.outcome, Generated):
            self._end(id, "failed", "llm_refused", str(work.outcome), attempts)
            return
        now_us = self._clock.now_us()
        deadline_us = deadline_us_of(work.unit.record)
        if (
            deadline_us is not None and now_us >= deadline_us
        ):  # decided in time, by a loop that was busy then
            self._end(id, "expired", "expired", TOO_LATE, attempts)
            return
        timings = work.timings(now_us)
        answer, citations = answered(
            work.unit.record,
            work.prepared,
            work.outcome,
            timings,
            attempts=attempts,
            citations_max=self._settings.citations_max,
        )
        finished = work.outcome.finished
        self._metrics.generator.tokens.labels(kind="input").inc(finished.input_tokens)
        self._metrics.generator.tokens.labels(kind="cached").inc(finished.cached_tokens)
        self._metrics.generator.tokens.labels(kind="output").inc(finished.output_tokens)
        self._metrics.generator.citations.labels(result="valid").inc(len(citations.valid))
        self._metrics.generator.citations.labels(result="dropped").inc(citations.dropped)
        with self._lock:
            self._forget(id)
        operation = inference(
            work.prepared.request, finished, timings, model=self._model, url=self._engine.address
        )
        late = (
            None
            if deadline_us is None
            else LateOutputs(deadline_us, partial(self._expired, work, attempts))
        )
        self._hand_over(work.unit, answer, now_us, (operation,), late=late)

    def _expired(self, work: QueryInProgress, attempts: int) -> tuple[Output]:
        """What is written in place of an answer whose commit begins too late."""
        now_us = self._clock.now_us()
        answer = not_answered(
            work.unit.record,
            work.timings(now_us),
            status="expired",
            error_type="expired",
            message=TOO_LATE,
            retryable=True,
            attempts=attempts,
        )
        return (bounded_answer_output(answer, work.unit.record.headers, now_us),)

    def _end(
        self,
        id: int,
        status: Status,
        error_type: ErrorType,
        message: str,
        attempts: int,
        *,
        add_trouble: bool = False,
    ) -> None:
        """Hands over the answer of a query that gets none."""
        with self._lock:
            work = self._forget(id)
        if work is None:
            return
        if add_trouble:
            message = f"{message}; the last time: {work.trouble}"
        now_us = self._clock.now_us()
        answer = not_answered(
            work.unit.record,
            work.timings(now_us),
            status=status,
            error_type=error_type,
            message=message,
            retryable=status == "expired" or add_trouble,
            attempts=attempts,
        )
        failure = None
        if add_trouble:
            retrieval = work.unit.record
            failure = QueryFailure(
                query=retrieval.query,
                source=retrieval.source,
                headers=retrieval.headers,
                deadline_us=deadline_us_of(retrieval),
                error_type=error_type,
                message=message,
                is_transient=True,
            )
        self._hand_over(work.unit, answer, now_us, failure=failure)

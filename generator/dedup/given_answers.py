"""The results that are handed over without the model: answers from the log, and of other services.

Any thread may call. What is returned is handed over by the caller.
"""

from __future__ import annotations

from typing import Any

from carpool.clock import Clock
from carpool.loop.answers import beside
from carpool.loop.stage import Done, QueryFailure, Unit
from carpool.telemetry.metrics import Metrics
from generator.answers import cancelled, expired, failed, given_again, replayed
from generator.outputs import bounded_answer_output
from generator.query_in_progress import QueryProgress, query_failure
from schemas.answer import Answer
from schemas.headers import tenant_of
from schemas.retrieval import Retrieval

CONFLICT = (
    "query_id: this id has an answer to another question already, and an id belongs to one "
    "question; publish this one under an id of its own"
)


class GivenAnswers:
    """Makes the result of a unit. `arrived_us`: when it came; times are epoch microseconds."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock

    def skipped(self, unit: Unit[Any]) -> Done:
        """Its record was answered before: there is no output."""
        self._count("skipped")
        return Done(parts=((unit.id, 0),), outputs=())

    def of_earlier_service(self, unit: Unit[Answer]) -> Done:
        """An earlier service answered the query."""
        return self._done(unit, unit.record)

    def cancelled(self, unit: Unit[Retrieval], arrived_us: int, now_us: int) -> Done:
        """Its asker has withdrawn the query."""
        return self._done(
            unit, cancelled(unit.record, QueryProgress(arrived_us=arrived_us), now_us)
        )

    def beside(self, unit: Unit[Any], arrived_us: int, now_us: int) -> Done:
        """Its id has an `ok` answer, which stays newest: the key of this one names the record too.

        The answer is that of an earlier service, or `expired`, or a conflict of ids.
        """
        record, progress = unit.record, QueryProgress(arrived_us=arrived_us)
        if isinstance(record, Answer):
            return self._done(unit, record, is_beside=True)
        if (deadline_us := record.deadline_us) is not None and deadline_us <= now_us:
            return self._done(unit, expired(record, progress, now_us), is_beside=True)
        self._count("conflict")
        answer = failed(record, progress, now_us, "conflict", CONFLICT)
        failure = query_failure(record, "conflict", CONFLICT, is_refusal=True)
        return self._done(unit, answer, failure, is_beside=True)

    def stored(
        self, unit: Unit[Retrieval], stored: Answer, key: str | None, arrived_us: int, now_us: int
    ) -> Done:
        """The log has the answer to its prompt, or (`key` None) to its id."""
        progress = QueryProgress(arrived_us=arrived_us)
        if key is None:
            self._count("replayed")
            answer = replayed(stored, unit.record, progress, now_us)
        else:
            self._count("reused")
            answer = given_again(stored, unit.record, progress, now_us)
        if answer.usage is not None:
            tenant = tenant_of(unit.record.headers)
            self._metrics.generator.tokens.add("reused", tenant, answer.usage.reused_tokens)
        return self._done(unit, answer)

    def _count(self, result: str) -> None:
        self._metrics.generator.dedup_decisions.labels(result=result).inc()

    def _done(
        self,
        unit: Unit[Any],
        answer: Answer,
        failure: QueryFailure | None = None,
        *,
        is_beside: bool = False,
    ) -> Done:
        is_ours = answer is not unit.record
        if failure is None and is_ours:  # else the loop or the earlier service counts it
            self._metrics.loop.answers.labels(stage="generator", status=answer.status).inc()
        headers = unit.record.headers if is_ours else unit.message.headers
        now_us, partition = self._clock.now_us(), unit.source.partition
        output = bounded_answer_output(answer, headers, now_us, partition)
        if is_beside:
            output = beside(output, answer, partition)
        return Done(parts=((unit.id, 0),), outputs=(output,), failure=failure)

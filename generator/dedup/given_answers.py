"""The results that are handed over without the model: answers from the log, and of other services.

Any thread may call. What is returned is handed over by the caller.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from carpool.clock import Clock
from carpool.endings import AskedQuery, with_own_key
from carpool.loop.stage import Done, Unit
from carpool.telemetry.metrics import Metrics
from generator.answers import asked_of, expired, given_again, replayed
from generator.outputs import final
from generator.plan.dedup_actions import What
from generator.query_in_progress import QueryProgress
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

    def ended(self, what: What, unit: Unit[Any], arrived_us: int, now_us: int) -> Done:
        """A unit ends as the plan says, and the model is not asked."""
        if what == "skip":
            self._count("skipped")
            return Done(parts=((unit.id, 0),), outputs=(), early="")
        if what == "cancel":
            return asked_of(unit, QueryProgress(arrived_us=arrived_us), now_us).cancelled(now_us)
        return self._own_key(unit, arrived_us, now_us) if what == "own_key" else self._given(unit)

    def _given(self, unit: Unit[Answer]) -> Done:
        """An earlier service answered the query, and counted that."""
        done = AskedQuery.of(unit, stage="generator").ended(unit.record, self._clock.now_us())
        return replace(done, early="")

    def _own_key(self, unit: Unit[Any], arrived_us: int, now_us: int) -> Done:
        """Its id has an `ok` answer, which stays newest: the key of this one names the record too.

        The answer is that of an earlier service, or `expired`, or a conflict of ids.
        """
        record, progress = unit.record, QueryProgress(arrived_us=arrived_us)
        if isinstance(record, Answer):
            assert record.source is not None, "it was read with a source"
            return with_own_key(self._given(unit), record.query_id, record.source)
        asked = asked_of(unit, progress, now_us)
        if asked.deadline_us is not None and asked.deadline_us <= now_us:
            done = expired(asked, progress, now_us)
        else:
            self._count("conflict")
            done = asked.failed(now_us, "conflict", CONFLICT, is_refusal=True)
        return with_own_key(done, asked.query_id, asked.source)

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
        self._metrics.loop.ended.labels(stage="generator", status=answer.status).inc()
        return final(unit, answer, self._clock.now_us())

    def _count(self, result: str) -> None:
        self._metrics.generator.dedup_decisions.labels(result=result).inc()

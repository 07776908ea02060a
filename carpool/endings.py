"""How a query ends without a result, or goes on as another record: in all services alike. Pure.

Only the generator writes `rag.answers.v1`. An answer of an earlier service is a record of
`rag.retrievals.v1` first, so that it passes the generator's dedup (ADR 0021). A query that is
written again, to `rag.retries.v1`, has the same class, id and deadline, and headers that name the
attempt, when to begin, and the record that the client published (`rag-origin`), so that every
answer names that record. The new record owes the one terminal answer; the old one owes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec

from carpool.dead_letters.letter import Reason, make_letter
from carpool.errors import DeploymentError
from carpool.kafka.records import Output
from carpool.kafka.sizes import fits, record_bytes
from carpool.loop.ends import DiedError, Ends, in_words
from carpool.loop.stage import Done, Failure, Unit
from carpool.origins import attempt_of, deadline_us_of, origin_of
from schemas.answer import Answer, ErrorType, Stage, Status, unanswered
from schemas.codec import SERVICE_QUERY_BYTES_MAX, encode, identified, with_key
from schemas.errors import RecordError
from schemas.group import Group
from schemas.headers import (
    ATTEMPT_HEADER,
    INDEX_HEADER,
    NOT_BEFORE_HEADER,
    ORIGIN_HEADER,
    RETRY_HEADERS,
)
from schemas.query import Query, root_of
from schemas.record import Headers, Source
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, KEY_SEPARATOR, QUERY_TOPICS, RETRIES, RETRIEVALS, in_class_of

MESSAGE_CHARS_MAX = 2_000
Header = tuple[str, bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedQuery:
    """A query that a service has in hand: what all of its ends are made from.

    An end acknowledges `part`: (unit id, part). `query` is as published, with the vector that was
    searched; None: it cannot be read, or has its answer. `source` is the record that the client
    published. `headers` are those of the query. `partition` is that of the record in hand.
    `timings_ms` and `attempts` are for its answer. Times are epoch microseconds.
    """

    stage: Stage
    part: tuple[int, int]
    partition: int
    query_id: str
    query: Query | None
    source: Source
    headers: Headers
    attempts: int
    deadline_us: int | None = None
    timings_ms: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def of(unit: Unit[Any], part: int = 0, *, stage: Stage) -> AskedQuery:
        """Returns the query of a part of a unit, whichever record that is; "" is no query's id."""
        record, message = unit.record, unit.message
        asked = partial(
            AskedQuery, stage=stage, part=(unit.id, part), partition=unit.source.partition
        )
        if isinstance(record, Group | Retrieval):
            of: Any = record.queries[part] if isinstance(record, Group) else record
            return asked(
                query_id=of.query.query_id,
                query=record.published(of) if isinstance(record, Group) else of.query,
                source=of.source,
                headers=of.headers,
                attempts=attempt_of(of.headers),
                deadline_us=of.deadline_us,
                timings_ms={name: time_us / 1_000 for name, time_us in of.timings_us.items()},
            )
        query = record if isinstance(record, Query) else None
        source = record.source if isinstance(record, Answer) else None
        headers = with_key(message.headers, message.key)
        return asked(
            query_id="" if record is None else record.query_id,
            query=query,
            source=source or origin_of(message),
            headers=headers,
            attempts=attempt_of(headers),
            deadline_us=None if query is None else deadline_us_of(query, message),
        )

    # Answers.

    def answer(
        self, status: Status, kind: ErrorType, message: str, *, retryable: bool = False
    ) -> Answer:
        """Returns the terminal answer that says why there is no other one."""
        return unanswered(
            query_id=self.query_id,
            status=status,
            stage=self.stage,
            error_type=kind,
            message=message,
            retryable=retryable,
            source=self.source,
            timings_ms=dict(self.timings_ms),
            attempts=self.attempts,
            query=self.query,
        )

    def ended(self, answer: Answer, now_us: int) -> Done:
        """Returns the work that ends with `answer`."""
        output = answer_output(
            answer,
            stage=self.stage,
            now_us=now_us,
            passed_on=self.headers,
            partition=self.partition,
        )
        return Done(parts=(self.part,), outputs=(output,), early=answer.status)

    def expired(self, now_us: int, before: str, note: str = "") -> Done:
        """Its deadline has passed, before what `before` says."""
        late_ms = (now_us - (self.deadline_us or 0)) / 1_000
        message = (
            f"the deadline passed {late_ms:.0f} ms before {before}; ask again with a later one"
        )
        return self.ended(self.answer("expired", "expired", message + note, retryable=True), now_us)

    def cancelled(self, now_us: int) -> Done:
        """Its asker has withdrawn it."""
        message = "the asker withdrew this question (rag.cancels.v1); ask again under another id"
        return self.ended(self.answer("cancelled", "cancelled", message), now_us)

    def failed(
        self,
        now_us: int,
        kind: ErrorType,
        message: str,
        *,
        retryable: bool = False,
        is_transient: bool = False,
        is_refusal: bool = False,
    ) -> Done:
        """It has no answer: the loop tries it again, or adds its dead letter. See `Failure`.

        One without a query has its answer, so there is nothing to try again.
        """
        failure = Failure(
            reason=kind,
            message=message,
            is_transient=is_transient,
            is_refusal=is_refusal,
            deadline_us=self.deadline_us,
            attempt=attempt_of(self.headers),
            again=self.retried,
            letter=partial(self._letter, kind, message),
        )
        done = self.ended(self.answer("failed", kind, message, retryable=retryable), now_us)
        return done if self.query is None else replace(done, failure=failure)

    def _letter(self, kind: str, message: str, group: str, attempts: int, now_us: int) -> Output:
        assert self.query is not None, "it was read"
        return make_letter(
            source=self.source,
            **self._written(root_of(self.query), self.headers, now_us),
            reason=Reason(
                group=group,
                stage=self.stage,
                attempts=attempts,
                class_name=f"QueryFailure.{kind}",
                message=message,
            ),
        )

    def _written(self, query: Query, headers: Headers, now_us: int, *added: Header) -> Any:
        """Returns key, value and headers of a query that is written again: its own, and `added`.

        A reader prefers the event id to an id in the body.
        """
        value, own = encode(
            query, event_id=query.query_id, source=f"carpool/{self.stage}", time_us=now_us
        )
        own += added
        names = {name for name, _ in own}
        kept = tuple(pair for pair in headers if pair[0] not in names)
        return {"key": query.query_id.encode(), "value": value, "headers": own + kept}

    # Other records. Each is None where it would be too large.

    def retried(self, begin_us: int, now_us: int) -> Output | None:
        """Returns the record with which the next attempt begins at `begin_us`."""
        return self._again(
            now_us,
            (ATTEMPT_HEADER, str(attempt_of(self.headers) + 1).encode()),
            (NOT_BEFORE_HEADER, str(-(-begin_us // 1_000)).encode()),
        )

    def planned_again(self, index_version: str, now_us: int) -> Output | None:
        """Returns the record that asks for a plan with this index or a newer one.

        The query did not fail: its group was planned with an older one. The attempt stays.
        """
        return self._again(
            now_us,
            (ATTEMPT_HEADER, str(attempt_of(self.headers)).encode()),
            (INDEX_HEADER, index_version.encode()),
        )

    def searched(self, query: Query, now_us: int) -> Output | None:
        """Returns the record with which a workflow searches; `query` has its journal."""
        return replace(self, query=query)._again(now_us)

    def _again(self, now_us: int, *added: Header) -> Output | None:
        """Returns the query written again, in the partition of its id."""
        assert self.query is not None, "it was read"
        origin = (ORIGIN_HEADER, f"{self.source.place}/{max(0, self.source.timestamp_ms)}".encode())
        earlier = tuple(pair for pair in self.headers if pair[0] not in RETRY_HEADERS)
        again = Output(
            topic=in_class_of(self.source.topic, RETRIES).name,
            **self._written(self.query, earlier, now_us, *added, origin),
        )
        # JSON is longer than text.
        fit = len(again.value or b"") <= SERVICE_QUERY_BYTES_MAX and fits(again, RETRIES)
        return again if fit else None


def answer_output(
    answer: Answer, *, stage: Stage, now_us: int, passed_on: Headers, partition: int | None = None
) -> Output:
    """Returns the record of `answer`, whose `source` is set; `passed_on`: headers of the query.

    The event id depends on the input record only, so both copies of a repeated answer have one id.
    The generator's is in `partition`, that of its record, where the dedup looks for it; one that is
    larger than its topic takes says so instead.
    """
    assert answer.source is not None, "every answer of a service names its input record"
    is_last = stage == "generator"
    topic = ANSWERS if is_last else in_class_of(answer.source.topic, RETRIEVALS)
    value, headers = encode(
        answer,
        event_id=f"{answer.source.record}/answer",
        source=f"carpool/{stage}",
        time_us=now_us,
        passed_on=passed_on,
    )
    output = Output(
        topic=topic.name,
        key=answer.query_id.encode(),
        value=value,
        headers=headers,
        partition=partition if is_last else None,
    )
    if not is_last or fits(output, ANSWERS):
        return output
    size_bytes = record_bytes(output.key, output.value, output.headers)
    too_large = unanswered(
        query_id=answer.query_id,
        status="failed",
        stage=stage,
        error_type="too_large",
        message=f"the answer's record has {size_bytes} bytes, and {ANSWERS.name} takes "
        f"{ANSWERS.max_message_bytes}; ask for fewer tokens or passages, and send small headers",
        source=answer.source,
    )
    # Without the headers of the query: they may be too large themselves.
    return answer_output(too_large, stage=stage, now_us=now_us, passed_on=(), partition=partition)


def with_own_key(done: Done, query_id: str, source: Source) -> Done:
    """Returns work whose answer has a key that names the record, too: it supersedes no `ok` one."""
    key = f"{query_id}{KEY_SEPARATOR}{source.place}".encode()
    return replace(done, outputs=tuple(replace(each, key=key) for each in done.outputs))


class QueryEnds(Ends):
    """The ends of records of queries, groups and retrievals: answers, retries and dead letters."""

    def __init__(self, stage: Stage) -> None:
        self._stage: Stage = stage

    def refused(self, unit: Unit[Any], error: Exception, *, group: str, now_us: int) -> Done:
        """A bad query gets a letter, and a `failed` answer where its id could be read.

        A bad record of a service, also a retry, stops consumption. The letter of a step of a
        workflow has the published query, which can be replayed.
        """
        message, record = unit.message, unit.record
        if not isinstance(error, RecordError):
            failed = RecordError("processing_failed", f"{type(error).__name__}: {error}")
            error = identified(failed, message.value, message.headers, message.source)
        if record is None and message.source.topic not in QUERY_TOPICS:
            raise stop_at(message.source, error, stage=self._stage)
        asked, value = AskedQuery.of(unit, stage=self._stage), message.value
        if isinstance(record, Query) and record.journal is not None:
            value = msgspec.json.encode(record.journal.root)
        letter = make_letter(
            source=asked.source,
            key=message.key,
            value=value,
            headers=message.headers,
            reason=Reason(
                group=group,
                stage=self._stage,
                attempts=asked.attempts,
                class_name=f"{type(error).__name__}.{error.reason}",
                message=str(error),
            ),
        )
        outputs: tuple[Output, ...] = (letter,)
        if error.query_id is not None:
            asked = replace(asked, query_id=error.query_id)
            answer = asked.answer("failed", error.reason, str(error)[:MESSAGE_CHARS_MAX])
            outputs += asked.ended(answer, now_us).outputs
        return Done(parts=unit.owed, outputs=outputs, early="")

    def failed(self, unit: Unit[Any], part: int, error: Exception, *, now_us: int) -> Done:
        """The query of a part ends its try as failed: a defect, or the process died of it."""
        has_died = isinstance(error, DiedError)
        asked = AskedQuery.of(unit, part, stage=self._stage)
        done = asked.failed(
            now_us,
            "processing_failed",
            in_words(error, self._stage),
            retryable=not has_died or len(unit.owed) > 1,  # another query may be the cause
            is_transient=not has_died,
        )
        if self._stage == "generator":  # no dedup follows, which knows of an `ok` answer
            return with_own_key(done, asked.query_id, asked.source)
        return done


def stop_at(source: Source, error: RecordError, *, stage: Stage) -> DeploymentError:
    """Returns the error that stops a service at a bad record, which the next version may read."""
    of_writer = " A newer or broken service wrote it: deploy matching versions."
    why = "" if error.reason == "unreadable" else of_writer
    return DeploymentError(
        f"{source.topic}[{source.partition}] at {source.offset} cannot be read by this build: "
        f"{error}.{why} Consumption has stopped; nothing is lost. To pass over this record, whose "
        "questions then get no answer, stop the service and call `carpool groups skip "
        f"{stage} {source.place}`"
    )

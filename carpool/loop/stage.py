"""The interface between the loop and a service, without a Kafka client.

The loop calls a stage from the polling thread. A stage returns results through its `Sink` from any
thread. No call blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from carpool.errors import CarpoolError
from carpool.kafka.records import Message, Output, TopicPartition
from carpool.loop.tracing.operation import Operation
from schemas.answer import ErrorType
from schemas.errors import RecordError
from schemas.query import Query
from schemas.record import Headers, Record, Source

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit(Generic[R]):
    """One input record that owes `parts` results; an earlier process committed `parts_done`.

    `id` is unique within the process: a unit that was revoked and read again is another unit.
    `traceparents`: the trace context for the outputs of each part; empty: that of the headers.
    """

    id: int
    record: R
    message: Message
    parts: int = 1
    parts_done: frozenset[int] = field(default_factory=frozenset)
    traceparents: tuple[str, ...] = ()

    @property
    def source(self) -> Source:
        """The place of the record in its log."""
        return self.message.source

    @property
    def owed(self) -> tuple[tuple[int, int], ...]:
        """(unit id, part) of each result that no earlier process committed."""
        return tuple((self.id, part) for part in range(self.parts) if part not in self.parts_done)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryFailure:
    """A valid query that a stage could not process, or that it refuses.

    `query`: as published, its own vector included. `source`: the record that the client published.
    `headers`: of the query. `is_transient`: another attempt may succeed. `is_refusal`: the query is
    the cause, not this deployment, so it does not count towards stopping the service.
    """

    query: Query
    source: Source
    headers: Headers
    deadline_us: int | None
    error_type: ErrorType
    message: str
    is_transient: bool
    is_refusal: bool = False


class LateOutputs(NamedTuple):
    """Replaces the outputs of work whose commit begins at `after_us` or later."""

    after_us: int
    outputs: Callable[[], tuple[Output, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """Finished work: (unit id, part) pairs, and the outputs that commit together with them.

    `operations`: for traces. `failure`: of one query, whose outputs are a `failed` answer; the loop
    may retry the query instead (`carpool.loop.retry`). `late`: outputs for an expired deadline.
    """

    parts: tuple[tuple[int, int], ...]
    outputs: tuple[Output, ...]
    operations: tuple[Operation, ...] = ()
    failure: QueryFailure | None = None
    late: LateOutputs | None = None

    def outputs_at(self, now_us: int) -> tuple[Output, ...]:
        """Returns the outputs to write when the commit begins now."""
        return (
            self.late.outputs()
            if self.late is not None and now_us >= self.late.after_us
            else self.outputs
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Credit:
    """How much a stage can accept now. Without records or bytes, the loop pauses all partitions.

    `paused_partitions`: partitions whose records would only wait in the stage now.
    """

    records: int
    size_bytes: int
    paused_partitions: frozenset[TopicPartition] = frozenset()


class Sink(Protocol):
    """Receives the results of a stage, in any order. Calls are thread-safe and do not block."""

    def done(self, done: Done) -> bool:
        """Submits finished work, which may still be revoked before its commit.

        Returns False if a defect prevented that: it has charged the queries instead. Answers of
        grouper and searcher go through the generator (`schemas.codec.decode_retrieval`).
        """

    def charge(self, parts: Sequence[tuple[int, int]], error: Exception) -> None:
        """Ends a try of the queries of these parts, which the stage has forgotten.

        Each is tried again, or ends as `failed`; parts that are finished stay as they are.
        """

    def hint(self, output: Output) -> None:
        """Sends a best-effort record, outside every commit: it may be lost, late or repeated."""

    def refuse(self, unit: Unit[Any], error: RecordError) -> None:
        """Rejects a bad unit of `rag.queries.v1`: a dead letter, and a `failed` answer."""

    def leave_group(self, reason: str) -> None:
        """Leaves the consumer group for a while: another member may be able to do the work.

        Unfinished units are revoked. `reason` is why this member is not ready, and what to do.
        """

    def fail(self, error: CarpoolError) -> None:
        """Stops consumption: the service is not ready, and its process ends."""


class Stage(Protocol[R]):
    """A service's work. All methods are called from the polling thread and must not block."""

    def start(self, sink: Sink) -> None:
        """Starts worker threads, if any. Called once, before anything else."""

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Adds these partitions. Earlier state of them is stale."""

    def credit(self) -> Credit:
        """Returns how much the stage can accept now."""

    def offer(self, unit: Unit[R], now_us: int) -> None:
        """Accepts one unit, within the last credit. An exception costs its queries a try.

        One of another method ends the process: a stage charges the unit that it knows.
        """

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        """Closes windows and expires work. Called after every batch of offers.

        `waiting`: known number of records that wait at the broker; 0: units in flight should
        leave. `next_commit_at_us`: work that finishes earlier waits for this commit. Returns
        the time of the next call, epoch microseconds; None: when records arrive.
        """

    def revoke(self, unit_ids: frozenset[int], partitions: frozenset[TopicPartition]) -> None:
        """Forgets these partitions and their units. The loop discards their later results."""

    def drain(self, until_us: int) -> None:
        """Begins to finish all units. The loop ticks until they finish, or until `until_us`.

        It stops earlier if the stage is not ready.
        """

    def not_ready(self) -> Sequence[str]:
        """Returns what the stage lacks (index, model, server), in words; empty when ready."""

    def notes(self) -> Sequence[str]:
        """Returns what a person should know while it is ready, in words. For any thread."""

    def close(self) -> None:
        """Stops threads and closes files. Called once, last; may block for a second."""

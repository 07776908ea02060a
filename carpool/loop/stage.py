"""The seam between the loop and a service: units in, finished work out, no Kafka client.

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
    """One input record that owes `parts` results; an earlier life committed `parts_done`.

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
        """Where the record was read."""
        return self.message.source

    @property
    def owed(self) -> tuple[tuple[int, int], ...]:
        """(unit id, part) of each result that no earlier life committed."""
        return tuple((self.id, part) for part in range(self.parts) if part not in self.parts_done)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryFailure:
    """A valid query that a stage could not process.

    `query`: as published, its own vector included. `source`: the record that the client published.
    `headers`: of the query. `is_transient`: another attempt may succeed.
    """

    query: Query
    source: Source
    headers: Headers
    deadline_us: int | None
    error_type: ErrorType
    message: str
    is_transient: bool


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
        """Returns what to write when the commit begins now."""
        return (
            self.late.outputs()
            if self.late is not None and now_us >= self.late.after_us
            else self.outputs
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Credit:
    """What a stage can take now. Without records or bytes, the loop pauses all partitions.

    `paused_partitions`: partitions whose records could only wait in the stage at the moment.
    """

    records: int
    size_bytes: int
    paused_partitions: frozenset[TopicPartition] = frozenset()


class Sink(Protocol):
    """Where a stage puts its results, in any order. Calls are thread-safe and do not block."""

    def done(self, done: Done) -> None:
        """Takes finished work. It may still be revoked before its commit."""

    def hint(self, output: Output) -> None:
        """Sends a best-effort record, outside every commit: it may be lost, late or repeated."""

    def refuse(self, unit: Unit[Any], error: RecordError) -> None:
        """Rejects a bad unit of `rag.queries.v1`: a dead letter, and a `failed` answer."""

    def fail(self, error: CarpoolError) -> None:
        """Stops consumption: the service is not ready, and its process ends."""


class Stage(Protocol[R]):
    """A service's work. All methods are called from the polling thread and must not block."""

    def start(self, sink: Sink) -> None:
        """Starts worker threads, if any. Called once, before anything else."""

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Adds these partitions. Earlier knowledge of them is stale."""

    def credit(self) -> Credit:
        """Returns what the stage can take now."""

    def offer(self, unit: Unit[R], now_us: int) -> None:
        """Takes one unit, within the credit last given."""

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        """Closes windows, expires work; called after every batch of offers.

        `waiting`: records known to wait at the broker; 0: none is pending, so units in flight
        should leave. `next_commit_at_us`: work that finishes earlier waits for this commit. Returns
        when to be called next, epoch microseconds; None: when records come.
        """

    def revoke(self, unit_ids: frozenset[int]) -> None:
        """Forgets these units. The loop discards results that still come for them."""

    def drain(self, until_us: int) -> None:
        """Asks to finish all units. The loop ticks until that is done, or until `until_us`."""

    def not_ready(self) -> Sequence[str]:
        """Returns what the stage lacks (index, model, server), in words; empty when ready."""

    def close(self) -> None:
        """Stops threads and closes files. Called once, last; may block for a second."""

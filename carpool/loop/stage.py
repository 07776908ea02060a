"""The seam between the loop and a service: units go in, done work comes out, and Kafka is nowhere
to be seen.

The loop calls a stage from one thread (the polling thread); a stage gives results back through its
`Sink` from any thread. Nothing here blocks.
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
    """One input record and what it owes: `parts` results, of which an earlier life committed
    `parts_done`.

    `id` is unique within the process: a unit that was revoked and read again is another unit.
    `traceparents`: for each part the trace context that what comes of it goes on; empty: as its
    headers have it.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryFailure:
    """A query that a stage could not process through no fault of the query. `query`: as published,
    its own vector included; `source`: the record that its asker published; `headers`: the query's.
    `is_transient`: another try may succeed.
    """

    query: Query
    source: Source
    headers: Headers
    deadline_us: int | None
    error_type: ErrorType
    message: str
    is_transient: bool


class LateOutputs(NamedTuple):
    """What takes the place of outputs whose commit begins after a moment, in epoch microseconds."""

    after_us: int
    outputs: Callable[[], tuple[Output, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """Acknowledged (unit id, part) pairs and the outputs that commit together with them, or not at
    all.

    `operations`: what was done to get there, for traces. `failure`: why the outputs are but a
    `failed` answer, of one query; the loop may have the query go round again instead
    (`carpool.loop.retry`). `late`: where an answer must not be given late.
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
    """What a stage will take now, in records and bytes; none of either pauses its topic partitions.

    `held`: partitions of which nothing is to come at the moment: what is taken in of them could
    only wait, in the way of others.
    """

    records: int
    size_bytes: int
    paused_partitions: frozenset[TopicPartition] = frozenset()


class Sink(Protocol):
    """Where a stage puts what it has done. Every call is thread-safe and returns at once; results
    come in any order.
    """

    def done(self, done: Done) -> None:
        """Hands over finished work. A normal return does not promise that it is committed: it may
        still be revoked.
        """
        ...

    def hint(self, output: Output) -> None:
        """Sends a best-effort record, outside every commit: it may be lost, late or repeated."""
        ...

    def refuse(self, unit: Unit[Any], error: RecordError) -> None:
        """Ends a whole unit of `rag.queries.v1` that turned out bad: dead letter, and a `failed`
        answer to its id.
        """
        ...

    def fail(self, error: CarpoolError) -> None:
        """Reports that the service cannot go on: the loop stops consuming, is not ready, and the
        process ends.
        """
        ...


class Stage(Protocol[R]):
    """A service's work. All methods are called from the polling thread and must not block."""

    def start(self, sink: Sink) -> None:
        """Starts worker threads, if any. Called once, before anything else."""
        ...

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Says that units of these partitions come from now on. What was known of them from before
        is stale.
        """
        ...

    def credit(self) -> Credit:
        """Returns what the stage will take now."""
        ...

    def offer(self, unit: Unit[R], now_us: int) -> None:
        """Takes one unit, within the credit last given."""
        ...

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        """Closes windows, expires work; returns when to be called next (epoch microseconds), or
        None: when records come.

        Called after every batch of offers. `waiting`: records known to wait at the broker; 0 means
        that nothing more is there, so what is in hand should leave. `next_commit_at_us`: what is
        finished before then waits for a commit until then.
        """
        ...

    def revoke(self, unit_ids: frozenset[int]) -> None:
        """Forgets these units now; results that still come for them are discarded by the loop."""
        ...

    def drain(self, until_us: int) -> None:
        """Says that nothing more comes: finish what is in hand. The loop goes on ticking until all
        is done, or `until_us`.
        """
        ...

    def not_ready(self) -> Sequence[str]:
        """Returns what is missing before the stage can work (index, model, server), in words; empty
        when ready.
        """
        ...

    def close(self) -> None:
        """Stops the worker threads and lets go of files. Called once, after the last tick; may
        block for a second.
        """
        ...

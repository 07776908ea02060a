"""The interface between the loop and a service, without a Kafka client.

The loop calls a stage from the polling thread. A stage returns results through its `Sink` from any
thread. No call blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from carpool.errors import CarpoolError
from carpool.kafka.records import Message, Output, TopicPartition
from schemas.record import Source

R = TypeVar("R")
Attribute = str | int | float | bool | tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit(Generic[R]):
    """One input record that owes `parts` results; an earlier process committed `parts_done`.

    `id` is unique within the process: a unit that was revoked and read again is another unit.
    A stage never gets one whose `record` is None: it could not be decoded.
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
    def at(self) -> TopicPartition:
        """Its partition."""
        return TopicPartition(self.message.source.topic, self.message.source.partition)

    @property
    def owed(self) -> tuple[tuple[int, int], ...]:
        """(unit id, part) of each result that no earlier process committed."""
        return tuple((self.id, part) for part in range(self.parts) if part not in self.parts_done)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A valid part that a stage could not process, or that it refuses.

    `reason`: in one word. `is_transient`: another attempt may succeed. `is_refusal`: the record is
    the cause, not this deployment, so it does not count towards leaving the consumer group.
    `deadline_us`: no attempt begins after it. `attempt`: the one that failed, if `again` writes
    the next one: it returns a record, for the times at which it begins and now, or None where that
    would be too large. Without `again` the part is tried again in place. `letter` returns the dead
    letter, for the consumer group, the attempts and now.
    """

    reason: str
    message: str
    is_transient: bool
    is_refusal: bool = False
    deadline_us: int | None = None
    attempt: int = 1
    again: Callable[[int, int], Output | None] | None = None
    letter: Callable[[str, int, int], Output]


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """Becomes a span. `name` has few values; times are epoch microseconds.

    `kind`: "client" for a remote call. `shared_by`: (unit id, part) of each part of a shared
    operation: its span links to each. Empty: of the first part of its `Done`.
    """

    name: str
    started_us: int
    ended_us: int
    kind: Literal["internal", "client"] = "internal"
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    shared_by: tuple[tuple[int, int], ...] = ()


class LateOutputs(NamedTuple):
    """Replaces the outputs of work whose commit begins at `after_us` or later."""

    after_us: int
    outputs: Callable[[], tuple[Output, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """Finished work: (unit id, part) pairs, and the outputs that commit together with them.

    Traces get the `operations`. `early` says how the work ended without a result, as metrics count
    it, or is "" for what they do not count; it does not show that this member is well. With the
    `failure` of one part the loop tries it again instead (`carpool.loop.retry`), or adds a dead
    letter to the outputs. `late` has the outputs for an expired deadline.
    """

    parts: tuple[tuple[int, int], ...]
    outputs: tuple[Output, ...]
    operations: tuple[Operation, ...] = ()
    early: str | None = None
    failure: Failure | None = None
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

        Returns False if a defect prevented that: it has charged the parts instead.
        """

    def charge(self, parts: Sequence[tuple[int, int]], error: Exception) -> None:
        """Ends a try of these parts, which the stage has forgotten.

        Each is tried again, or ends as `failed`; parts that are finished stay as they are.
        """

    def hint(self, output: Output) -> None:
        """Sends a best-effort record, outside every commit: it may be lost, late or repeated."""

    def refuse(self, unit: Unit[Any], error: Exception) -> None:
        """Ends a bad unit, which gets a dead letter, and what else its service writes."""

    def leave_group(self, reason: str) -> None:
        """Leaves the consumer group for a while: another member may be able to do the work.

        Unfinished units are revoked. `reason` is why this member is not ready, and what to do.
        """

    def fail(self, error: CarpoolError) -> None:
        """Stops consumption: the service is not ready, and its process ends."""


class Stage(Protocol[R]):
    """A service's work. All methods are called from the polling thread and must not block.

    What is not defined does nothing: a stage that finishes each unit in `offer` needs no more.
    """

    def start(self, sink: Sink) -> None:
        """Starts worker threads, if any. Called once, before anything else."""

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Adds these partitions. Earlier state of them is stale."""
        return

    def credit(self) -> Credit:
        """Returns how much the stage can accept now."""
        return Credit(records=1_000, size_bytes=64 * 1024 * 1024)

    def offer(self, unit: Unit[R], now_us: int) -> None:
        """Accepts one unit, within the last credit. An exception costs its parts a try.

        One of another method ends the process: a stage charges the unit that it knows.
        """

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        """Closes windows and expires work. Called after every batch of offers.

        `waiting`: known number of records that wait at the broker; 0: units in flight should
        leave. `next_commit_at_us`: work that finishes earlier waits for this commit. Returns
        the time of the next call, epoch microseconds; None: when records arrive.
        """
        return None

    def revoke(self, unit_ids: frozenset[int], partitions: frozenset[TopicPartition]) -> None:
        """Forgets these partitions and their units. The loop discards their later results."""
        return

    def drain(self, until_us: int) -> None:
        """Begins to finish all units. The loop ticks until they finish, or until `until_us`.

        It stops earlier if the stage is not ready.
        """
        return

    def not_ready(self) -> Sequence[str]:
        """Returns what the stage lacks (index, model, server), in words; empty when ready."""
        return ()

    def notes(self) -> Sequence[str]:
        """Returns what a person should know while it is ready, in words. For any thread."""
        return ()

    def close(self) -> None:
        """Stops threads and closes files. Called once, last; may block for a second."""
        return

"""The seam to a broker: what the loop and its delivery need of a Kafka consumer and a Kafka
producer.

Two implementations, held to one conformance suite: `librdkafka` (real brokers) and `memory`
(tests).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from carpool.errors import CarpoolError
from carpool.kafka.records import Message, Output, TopicPartition

CommitResult = Callable[[CarpoolError | None], None]


class Position(NamedTuple):
    """The offset to go on from (None: nothing was committed) and the metadata that was committed
    with it.
    """

    offset: int | None
    metadata: str


class RebalanceListener(Protocol):
    """Told of assignments, from inside `poll`."""

    def assigned(self, positions: Mapping[TopicPartition, Position]) -> None:
        """These partitions are ours now, with what was committed for them."""
        ...

    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        """These partitions go to another member when this returns. `lost`: they are gone already,
        commits are too late.

        Requests to commit that were not begun are dropped before this call, without a result.
        """
        ...


class ConsumerClient(Protocol):
    """A member of a consumer group. All calls but `commit` come from one thread, the polling
    thread.

    Clients may hold a lock while they poll (confluent-kafka does, and it is not fair): whoever else
    wants the consumer would starve. So `commit` only leaves a request, which the polling thread
    serves.
    """

    def subscribe(
        self, topic: str, listener: RebalanceListener, extra_topics: tuple[str, ...] = ()
    ) -> None:
        """Joins the group, for a topic and those that are read beside it. Raises `ConfigError` when
        one does not exist.
        """
        ...

    def poll(self, timeout_s: float) -> Message | None:
        """Returns the next record, or None after `timeout_s`. Serves the listener.

        Raises `DeploymentError` when the log no longer holds the offset to go on from,
        `FencedError` when thrown out.
        """
        ...

    def pause(self, topics: frozenset[str] | None = None) -> None:
        """Stops the flow of records, of these topics or of all; `poll` goes on keeping the
        membership.
        """
        ...

    def resume(self, topics: frozenset[str] | None = None) -> None:
        """Lets records of these topics flow again, or of all."""
        ...

    def pause_partitions(self, partitions: frozenset[TopicPartition]) -> None:
        """Stops the flow of records of just these partitions, whatever was held before; others are
        as `pause` has them.
        """
        ...

    def waiting(self) -> dict[TopicPartition, int]:
        """Returns the records known to wait in each assigned partition, counted from the position,
        not from commits.
        """
        ...

    def commit(self, offsets: Mapping[TopicPartition, Position], on_result: CommitResult) -> None:
        """Asks for a commit; returns at once. Thread-safe; at most one is under way.

        `on_result` is called from inside `poll`, once, with None, `RetryableError`, or
        `FencedError` when the group went on without this member.
        """
        ...

    def commit_now(self, offsets: Mapping[TopicPartition, Position]) -> None:
        """Commits, blocking, after any commit that was asked for before. From the polling thread
        only; raises as above.
        """
        ...

    def membership(self, *, fresh: bool = False) -> Membership | None:
        """Returns what proves to the broker that this member is part of its group; None while it is
        not.

        From the polling thread only. It may be a moment old, but no older than the last rebalance
        that this member took part in, unless `fresh` is asked for, which takes longer.
        """
        ...

    def close(self) -> None:
        """Leaves the group; the listener hears of the last revocation."""
        ...


class Membership(Protocol):
    """A member's place in its consumer group (id and generation or epoch), as the client that made
    it understands it.

    May be used on any thread.
    """


class FenceInstance(Protocol):
    """Ends the transactions of another instance id."""

    def __call__(self, instance_id: str) -> None:
        """Takes the instance's transactional id. Blocks.

        Its open transaction is aborted, and its member can commit no more.

        Raises `RetryableError` where no coordinator answered.
        """
        ...


class TransactionalProducerClient(Protocol):
    """Writes records and offsets together or not at all (ADR 0007). From one thread at a time.

    Every call but `close` blocks, and raises `RetryableError` (the same call again), `AbortedError`
    (nothing of this transaction will be seen: `abort`, then begin anew), `FencedError` (another
    producer has the id) or `DeploymentError` (the broker refuses for good what was produced).
    """

    def start(self) -> None:
        """Takes the transactional id: fences its previous life and ends its open transaction. Once,
        before all else.
        """
        ...

    def begin(self) -> None:
        """Opens a transaction."""
        ...

    def produce(self, output: Output) -> None:
        """Adds a record to the transaction; waits while the client's queue is full. Whether the
        broker took it shows in `commit`.
        """
        ...

    def send_offsets(
        self, offsets: Mapping[TopicPartition, Position], membership: Membership
    ) -> None:
        """Adds offsets and their metadata. The broker checks the membership, and not who owns the
        partitions.

        One from before a rebalance is an `AbortedError`: that happens to the living, and the next
        `membership` is good.
        """
        ...

    def commit(self) -> None:
        """Ends the transaction: all of it is seen. After `RetryableError` it may have been: only
        another call tells.
        """
        ...

    def abort(self) -> None:
        """Ends the transaction: none of it is seen, offsets included."""
        ...

    def close(self) -> None:
        """Lets go of the connection; an open transaction is aborted by the next life or its
        time-out.
        """
        ...


class ProducerClient(Protocol):
    """Writes records. Thread-safe."""

    def produce(self, output: Output, on_delivery: Callable[[CarpoolError | None], None]) -> bool:
        """Queues a record; False when the queue is full. `on_delivery` is called from `poll`, once,
        with the outcome.
        """
        ...

    def poll(self, timeout_s: float) -> None:
        """Serves deliveries, waiting up to `timeout_s` for one."""
        ...

    def close(self, timeout_s: float) -> int:
        """Flushes for up to `timeout_s`; returns the records that did not make it."""
        ...


def partitions_text(partitions: Iterable[TopicPartition]) -> str:
    """Returns partitions for a log line: topic[0,1,2]."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return " ".join(
        f"{topic}[{','.join(map(str, numbers))}]" for topic, numbers in by_topic.items()
    )

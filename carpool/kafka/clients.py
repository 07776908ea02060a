"""The protocols of consumers and producers, as the loop and its delivery use them.

Two implementations pass one conformance suite: `librdkafka` (real brokers) and
`tests.memory_broker`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from carpool.errors import CarpoolError
from carpool.kafka.records import Message, Output, TopicPartition

CommitResult = Callable[[CarpoolError | None], None]


class Position(NamedTuple):
    """A committed offset (None: nothing was committed) and its metadata."""

    offset: int | None
    metadata: str


class RebalanceListener(Protocol):
    """Is called when assignments change or a partition cannot be read, inside `poll`."""

    def assigned(self, positions: Mapping[TopicPartition, Position]) -> None:
        """These partitions are assigned to this member, with their committed positions."""

    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        """The broker assigns these partitions to another member when this call returns.

        `lost`: they were already reassigned, and commits fail. Commit requests that were not sent
        are dropped before this call, without a result.
        """

    def fetch_failed(self, at: TopicPartition, error: str, *, lasts: bool = False) -> None:
        """A fetch of this partition failed; the client tries again. `error` says why.

        `lasts` says that the next record does not exist: no more of the partition is read.
        """


class ConsumerClient(Protocol):
    """A member of a consumer group. All calls but `commit` come from the polling thread.

    A client may lock itself while it polls (confluent-kafka does), so a commit from another thread
    could wait for long. `commit` therefore only queues a request for the polling thread.
    """

    def subscribe(
        self, topic: str, listener: RebalanceListener, extra_topics: tuple[str, ...] = ()
    ) -> None:
        """Joins the group. Raises `ConfigError` when a topic does not exist."""

    def poll(self, timeout_s: float) -> Message | None:
        """Returns the next record, or None after `timeout_s`. Calls the listener.

        A batch that cannot be unpacked, tried several times, is returned as one `unreadable` record
        and passed over. Raises `FencedError` when the group removed this member.
        """

    def pause(
        self, topics: frozenset[str], partitions: frozenset[TopicPartition] = frozenset()
    ) -> None:
        """Pauses exactly these topics and partitions, also where they are assigned later.

        `poll` still keeps the membership.
        """

    def waiting(self) -> dict[TopicPartition, int]:
        """Returns the known number of unread records of each assigned partition."""

    def commit(self, offsets: Mapping[TopicPartition, Position], on_result: CommitResult) -> None:
        """Requests a commit without blocking. Thread-safe; one commit is in flight at a time.

        `poll` calls `on_result` once: with None, `RetryableError`, or `FencedError` when the group
        removed this member.
        """

    def commit_now(self, offsets: Mapping[TopicPartition, Position]) -> None:
        """Commits and blocks, after earlier requests. Polling thread only; raises as above."""

    def membership(self, *, fresh: bool = False) -> Membership | None:
        """Returns the proof of membership for the broker; None for no member.

        Polling thread only. The result is not older than this member's last rebalance. `fresh`: do
        not use the cache, which takes longer.
        """

    def leave(self) -> None:
        """Leaves the group; the listener is called for the last revocation.

        Until `subscribe` is called again, no record waits and there is no membership.
        """

    def close(self) -> None:
        """Leaves the group as `leave` does, and disconnects."""


class Membership(Protocol):
    """A member's place in its group (id and generation or epoch), opaque; for any thread."""


class TransactionalProducerClient(Protocol):
    """Writes records and offsets atomically (ADR 0007). One thread at a time.

    Every call but `close` blocks, and raises `RetryableError` (repeat the call), `AbortedError`
    (call `abort`, then begin anew), `FencedError` (another producer has the id) or
    `DeploymentError` (the broker refuses these records).
    """

    def start(self) -> None:
        """Takes the transactional id and aborts its open transaction. Call it once, first."""

    def begin(self) -> None:
        """Opens a transaction."""

    def produce(self, output: Output) -> None:
        """Adds a record; blocks while the client's queue is full. `commit` reports failures."""

    def send_offsets(
        self, offsets: Mapping[TopicPartition, Position], membership: Membership
    ) -> None:
        """Adds offsets with metadata, after all records are written.

        The broker checks the membership only.
        A membership from before a rebalance is an `AbortedError`; the next `membership` is valid.
        """

    def commit(self) -> None:
        """Commits the transaction. After `RetryableError` its outcome is unknown: call it again."""

    def abort(self) -> None:
        """Ends the transaction: its records and offsets stay invisible."""

    def close(self) -> None:
        """Disconnects; the next start or the transaction time-out aborts an open transaction."""


class ProducerClient(Protocol):
    """Writes records. Thread-safe."""

    def produce(self, output: Output, on_delivery: Callable[[CarpoolError | None], None]) -> bool:
        """Queues a record; False when the queue is full. `poll` calls `on_delivery` once."""

    def poll(self, timeout_s: float) -> None:
        """Serves deliveries, waiting up to `timeout_s` for one."""

    def close(self, timeout_s: float) -> int:
        """Flushes for up to `timeout_s`; returns the number of records that were not written."""


def partitions_text(partitions: Iterable[TopicPartition]) -> str:
    """Returns partitions for a log line: topic[0,1,2]."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return " ".join(
        f"{topic}[{','.join(map(str, numbers))}]" for topic, numbers in by_topic.items()
    )

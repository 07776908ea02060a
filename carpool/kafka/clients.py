"""The seam to a broker: what the loop and its delivery need of a Kafka consumer and a Kafka producer.

Two implementations, held to one conformance suite: `librdkafka` (real brokers) and `memory` (tests).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from carpool.errors import CarpoolError
from carpool.kafka.stage import Message, Output

CommitResult = Callable[[CarpoolError | None], None]


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


class Position(NamedTuple):
    """The offset to go on from (None: nothing was committed) and the metadata that was committed with it."""

    offset: int | None
    metadata: str


class RebalanceListener(Protocol):
    """Told of assignments, from inside `poll`."""

    def assigned(self, positions: Mapping[TopicPartition, Position]) -> None:
        """These partitions are ours now, with what was committed for them."""
        ...

    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        """These partitions go to another member when this returns. `lost`: they are gone already, commits are too late.

        Requests to commit that were not begun are dropped before this call, without a result.
        """
        ...


class ConsumerClient(Protocol):
    """A member of a consumer group. All calls but `commit` come from one thread, the polling thread.

    Clients may hold a lock while they poll (confluent-kafka does, and it is not fair): whoever else wants the consumer would
    starve. So `commit` only leaves a request, which the polling thread serves.
    """

    def subscribe(self, topic: str, listener: RebalanceListener) -> None:
        """Joins the group. Raises `ConfigError` when the topic does not exist."""
        ...

    def poll(self, timeout_s: float) -> Message | None:
        """Returns the next record, or None after `timeout_s`. Serves the listener.

        Raises `DeploymentError` when the log no longer holds the offset to go on from, `FencedError` when thrown out.
        """
        ...

    def pause(self) -> None:
        """Stops the flow of records from every assigned partition; `poll` goes on keeping the membership."""
        ...

    def resume(self) -> None:
        """Lets records flow again."""
        ...

    def waiting(self) -> dict[TopicPartition, int]:
        """Returns the records known to wait in each assigned partition, counted from the position, not from commits."""
        ...

    def commit(self, offsets: Mapping[TopicPartition, Position], on_result: CommitResult) -> None:
        """Asks for a commit; returns at once. Thread-safe; at most one is under way.

        `on_result` is called from inside `poll`, once, with None, `RetryableError`, or `FencedError` when the group went on
        without this member.
        """
        ...

    def commit_now(self, offsets: Mapping[TopicPartition, Position]) -> None:
        """Commits, blocking, after any commit that was asked for before. From the polling thread only; raises as above."""
        ...

    def close(self) -> None:
        """Leaves the group; the listener hears of the last revocation."""
        ...


class ProducerClient(Protocol):
    """Writes records. Thread-safe."""

    def produce(self, output: Output, on_delivery: Callable[[CarpoolError | None], None]) -> bool:
        """Queues a record; False when the queue is full. `on_delivery` is called from `poll`, once, with the outcome."""
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
    return " ".join(f"{topic}[{','.join(map(str, numbers))}]" for topic, numbers in by_topic.items())

"""The transaction coordinator of the broker in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from carpool.clock import Clock
from carpool.errors import AbortedError, FencedError
from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import METADATA_BYTES_MAX
from carpool.kafka.records import Output, TopicPartition
from tests.memory_broker.groups import ConsumerGroup, MemoryMembership
from tests.memory_broker.log import MemoryTransaction, PartitionLog, StoredRecord


@dataclass(slots=True)
class _TransactionalId:
    """The present epoch and transaction of a transactional id."""

    epoch: int = -1
    transaction: MemoryTransaction | None = None


class TransactionCoordinator:
    """Keeps transactions by id. Not thread-safe: the broker's lock guards it."""

    def __init__(
        self,
        clock: Clock,
        logs: Mapping[TopicPartition, PartitionLog],
        groups: Mapping[str, ConsumerGroup],
    ) -> None:
        self._clock = clock
        self._logs = logs
        self._groups = groups
        self._ids: dict[str, _TransactionalId] = {}

    def start(self, transactional_id: str) -> int:
        """Returns the next epoch of the id, and aborts the transaction of the previous epoch."""
        known = self._ids.setdefault(transactional_id, _TransactionalId())
        known.epoch += 1
        self._end(known, "aborted")
        return known.epoch

    def append(self, transactional_id: str, epoch: int, at: TopicPartition, output: Output) -> None:
        """Adds a record to the transaction of the id."""
        transaction = self._open(transactional_id, epoch)
        transaction.partitions.add(at)
        self._logs[at].append(
            StoredRecord(
                key=output.key,
                value=output.value,
                headers=output.headers,
                timestamp_ms=self._clock.now_us() // 1_000,
                transaction=transaction,
            )
        )

    def send_offsets(
        self,
        transactional_id: str,
        epoch: int,
        offsets: Mapping[TopicPartition, Position],
        membership: MemoryMembership,
    ) -> None:
        """Adds offsets. As at real brokers, membership is checked, ownership is not."""
        transaction = self._open(transactional_id, epoch)
        group = self._groups[membership.group]
        if not group.is_current(membership):
            raise AbortedError(
                "the offsets come from a member as it was before a rebalance; the next poll renews "
                "it"
            )
        if any(
            len(position.metadata.encode()) > METADATA_BYTES_MAX for position in offsets.values()
        ):
            raise AbortedError(f"commit metadata is longer than {METADATA_BYTES_MAX} bytes")
        pending = transaction.offsets.setdefault(membership.group, {})
        for at, position in offsets.items():
            pending[at] = (group.next_write(), position)

    def commit(self, transactional_id: str, epoch: int) -> None:
        """Commits the transaction; a repeated call does nothing."""
        self._end(self._present(transactional_id, epoch), "committed")

    def abort(self, transactional_id: str, epoch: int) -> None:
        """Aborts the transaction; a repeated call does nothing."""
        self._end(self._present(transactional_id, epoch), "aborted")

    def unstable(self, group: str) -> set[TopicPartition]:
        """Returns the partitions whose offsets an open transaction blocks."""
        return {
            at
            for known in self._ids.values()
            if known.transaction is not None
            for at in known.transaction.offsets.get(group, ())
        }

    def began_us(self, transactional_id: str) -> int | None:
        """Returns when the open transaction of the id began; None without one."""
        known = self._ids.get(transactional_id, _TransactionalId())
        return None if known.transaction is None else known.transaction.began_us

    def _present(self, transactional_id: str, epoch: int) -> _TransactionalId:
        known = self._ids[transactional_id]
        if known.epoch != epoch:
            raise FencedError(
                f"another Kafka producer has the transactional id {transactional_id} now"
            )
        return known

    def _open(self, transactional_id: str, epoch: int) -> MemoryTransaction:
        """Returns the transaction of the id; the first record or offset begins it."""
        known = self._present(transactional_id, epoch)
        if known.transaction is None:
            known.transaction = MemoryTransaction(began_us=self._clock.now_us())
        return known.transaction

    def _end(self, known: _TransactionalId, state: Literal["committed", "aborted"]) -> None:
        transaction, known.transaction = known.transaction, None
        if transaction is None:
            return
        transaction.state = state
        for at in sorted(transaction.partitions):
            self._logs[at].append(
                StoredRecord(
                    timestamp_ms=self._clock.now_us() // 1_000,
                    transaction=transaction,
                    is_marker=True,
                )
            )
        if state == "committed":
            for name, offsets in transaction.offsets.items():
                self._groups[name].commit(offsets)

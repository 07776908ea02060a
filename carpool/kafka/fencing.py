"""Decides which members to fence at a takeover, and how the new owner claims a partition. Pure.

See ADR 0007 and 0012. Metadata without an instance id was committed under at-least-once, which
leaves no transactions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from carpool.errors import DeploymentError
from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import METADATA_BYTES_MAX, instance_id_of, with_instance_id
from carpool.kafka.records import TopicPartition

LIVING_WAIT_S = 5.0
"""How long the same transaction of a living member is waited for.

A living member released the partition after its commit; brokers under load may still write the
transaction markers.
"""


class Transaction(NamedTuple):
    """A transaction that has not ended. `is_ending`: its end is decided and is being written.

    `started_at`: by the coordinator's clock; it tells two transactions of one id apart.
    """

    started_at: int
    is_ending: bool


class TakeoverSteps(NamedTuple):
    """Which of the last owners are fenced now, and whose transactions are waited for."""

    fence: tuple[str, ...]
    wait: tuple[str, ...]


class Takeover:
    """Decides for one assignment of partitions. No I/O; `now_s` is a monotonic time."""

    def __init__(self, living_wait_s: float = LIVING_WAIT_S) -> None:
        """`living_wait_s`: a smaller limit than `LIVING_WAIT_S`, in seconds."""
        self._living_wait_s = min(LIVING_WAIT_S, living_wait_s)
        self._first: dict[str, tuple[int, float]] = {}  # start of a transaction, when it was seen

    def decide(
        self, unfinished: Mapping[str, Transaction], living: Collection[str], now_s: float
    ) -> TakeoverSteps:
        """Returns what to do about the unfinished transactions of the last owners, by instance id.

        A dead owner is fenced. Of a living owner, only the transaction that was unfinished at the
        first call can contain the new partitions: it is waited for, and the owner is fenced when it
        is still open after `living_wait_s`. A transaction that is ending is always waited for.
        """
        fence, wait = [], []
        for owner, transaction in sorted(unfinished.items()):
            first_at, since_s = self._first.setdefault(owner, (transaction.started_at, now_s))
            is_first = transaction.started_at == first_at
            if owner in living and not is_first:
                continue
            is_stuck = is_first and now_s - since_s >= self._living_wait_s
            if not transaction.is_ending and (owner not in living or is_stuck):
                fence.append(owner)
            else:
                wait.append(owner)
        return TakeoverSteps(tuple(fence), tuple(wait))


def transactional_id(group: str, instance_id: str) -> str:
    """Returns the transactional id of a member."""
    return f"{group}-{instance_id}"


def previous_owners(last: Iterable[Position], own_instance_id: str) -> list[str]:
    """Returns the instance ids that committed these positions, except our own.

    The previous process with our own id was fenced at start.
    """
    return sorted(
        {instance_id_of(position.metadata) or own_instance_id for position in last}
        - {own_instance_id}
    )


def claims(
    positions: Mapping[TopicPartition, Position], own_instance_id: str
) -> dict[TopicPartition, Position]:
    """Returns the positions to commit for newly assigned partitions: unchanged, with our id.

    Metadata that would become too long is not changed: the first transaction names the owner.
    Raises `DeploymentError` for metadata of another program, which would be overwritten.
    """
    return {
        at: position._replace(metadata=_claim(at, position.metadata, own_instance_id))
        for at, position in positions.items()
    }


def _claim(at: TopicPartition, metadata: str, own_instance_id: str) -> str:
    try:
        claimed = with_instance_id(metadata, own_instance_id)
    except DeploymentError as error:
        raise DeploymentError(f"{at.topic}[{at.partition}]: {error}") from error
    return claimed if len(claimed) <= METADATA_BYTES_MAX else metadata

"""Decides which members to fence at a takeover, and how the new owner claims a partition. Pure.

See ADR 0007. Metadata without an instance id was committed under at-least-once, which leaves no
transactions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import METADATA_BYTES_MAX, instance_id_of, with_instance_id
from carpool.kafka.records import TopicPartition

TAKEOVER_WAIT_S = 0.1
"""Wait for a transaction that blocks the offsets of a newly assigned partition, before its owner is
looked up. Most transactions end within milliseconds.
"""

LIVING_WAIT_S = 5.0
"""The same wait where the owner is a living member, at most half of the request time-out.

A living member released the partition after its commit; brokers under load may still write the
transaction markers.
"""


def transactional_id(group: str, instance_id: str) -> str:
    """Returns the transactional id of a member."""
    return f"{group}-{instance_id}"


def instances_to_fence(
    last: Iterable[Position], own_instance_id: str, living: Collection[str] = ()
) -> list[str]:
    """Returns the ids that committed these positions, except our own and those of living members.

    The previous process with our own id was fenced at start.
    """
    return sorted(
        {instance_id_of(position.metadata) or own_instance_id for position in last}
        - {own_instance_id, *living}
    )


def claims(
    positions: Mapping[TopicPartition, Position], own_instance_id: str
) -> dict[TopicPartition, Position]:
    """Returns the positions to commit for newly assigned partitions: unchanged, with our id.

    Metadata that would become too long is not changed: the first transaction names the owner.
    """
    return {
        at: position._replace(metadata=_claim(position.metadata, own_instance_id))
        for at, position in positions.items()
    }


def _claim(metadata: str, own_instance_id: str) -> str:
    claimed = with_instance_id(metadata, own_instance_id)
    return claimed if len(claimed) <= METADATA_BYTES_MAX else metadata

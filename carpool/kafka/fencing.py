"""Taking a partition over: whom to fence, and the claim by which the next owner will know whom (ADR
0007).

Shared by all consumer clients. Metadata that names nobody was committed at least once, by who
leaves no transaction behind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import METADATA_BYTES_MAX, instance_id_of, with_instance_id
from carpool.kafka.records import TopicPartition

TAKEOVER_WAIT_S = 0.1
"""How long a transaction may hold the offsets of a partition that is ours now before anybody asks
whose it is: most end within milliseconds.
"""

LIVING_WAIT_S = 5.0
"""How long it may hold them where its owner is a living member, but no longer than half of the time
there is: such a member let go of the partition after its commit, of which brokers under load may
still be writing the markers.
"""


def transactional_id(group: str, instance_id: str) -> str:
    """Returns the transactional id of a member."""
    return f"{group}-{instance_id}"


def instances_to_fence(
    last: Iterable[Position], own_instance_id: str, living: Collection[str] = ()
) -> list[str]:
    """Returns who committed these positions, less ourselves and the living. Starting has fenced our
    previous life already.
    """
    return sorted(
        {instance_id_of(position.metadata) or own_instance_id for position in last}
        - {own_instance_id, *living}
    )


def claims(
    positions: Mapping[TopicPartition, Position], own_instance_id: str
) -> dict[TopicPartition, Position]:
    """Returns what to commit for partitions that are ours now: what is committed for them, with our
    instance id.

    Where that would be too long for a commit, it stays as it is: the first transaction says who
    owns the partition.
    """
    return {
        at: position._replace(metadata=_claim(position.metadata, own_instance_id))
        for at, position in positions.items()
    }


def _claim(metadata: str, own_instance_id: str) -> str:
    claimed = with_instance_id(metadata, own_instance_id)
    return claimed if len(claimed) <= METADATA_BYTES_MAX else metadata

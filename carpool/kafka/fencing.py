"""Decides which members to fence at a takeover, and how the new owner claims a partition. Pure.

See ADR 0007, 0012 and 0027. Metadata without an instance id was committed by a member that gave the
partition up alive, or under at-least-once: no transaction is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from carpool.errors import DeploymentError
from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import METADATA_BYTES_MAX, Deaths, head_of, with_head
from carpool.kafka.records import TopicPartition

SUSPECTS_MAX = 32
"""Records from the committed offset on, at most, that are tried alone after two deaths.

With more, a service that was killed twice by chance is slow for longer. A record that kills and is
farther away kills twice more for each 32 records before it.
"""
ALONE_DEATHS = 2
"""After so many deaths in a row with a record in hand, it is tried alone."""
FATAL_DEATHS = ALONE_DEATHS + 3
"""After three more, while it was in hand alone, it ends: two could be chance."""
QUIET_US = 20_000_000
"""How long the service has nothing in hand before it tries a record alone again.

A service that is killed every few seconds, whatever it does, dies meanwhile.
"""
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
        {head_of(position.metadata).instance_id or own_instance_id for position in last}
        - {own_instance_id}
    )


def left_by_the_dead(
    last: Mapping[TopicPartition, Position],
    own_instance_id: str,
    claimed_before: Collection[TopicPartition],
) -> list[TopicPartition]:
    """Returns the partitions that a dead process had in hand: a living one gives them up.

    `claimed_before` are those of this process, which lives although the group may have removed it.
    """
    owners = {at: head_of(position.metadata).instance_id for at, position in last.items()}
    return [
        at
        for at, owner in owners.items()
        if owner is not None and not (owner == own_instance_id and at in claimed_before)
    ]


def claims(
    positions: Mapping[TopicPartition, Position],
    own_instance_id: str,
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, Position]:
    """Returns the positions to commit for newly assigned partitions, with our id.

    `ends` has the ends of the logs of partitions whose last owner has died, which raises their
    deaths; if it had a record of one alone in hand, of this one only. Metadata that would become
    too long is not changed: the first transaction names the owner. Raises `DeploymentError` for
    metadata of another program, which would be overwritten.
    """
    heads = {at: head_of(positions[at].metadata) for at in ends}
    alone = {at: ends[at] for at, head in heads.items() if head.deaths and head.deaths.is_alone}
    counted = alone or ends
    return {
        at: position._replace(metadata=_claim(at, position, own_instance_id, counted.get(at)))
        for at, position in positions.items()
    }


def _claim(at: TopicPartition, position: Position, own_instance_id: str, end: int | None) -> str:
    metadata = position.metadata
    try:
        head, ahead = head_of(metadata), (end or 0) - (position.offset or 0)
        deaths = after_life(head.deaths) if end is None else after_death(head.deaths, ahead)
        claimed = with_head(metadata, head._replace(instance_id=own_instance_id, deaths=deaths))
    except DeploymentError as error:
        raise DeploymentError(f"{at.topic}[{at.partition}]: {error}") from error
    return claimed if len(claimed) <= METADATA_BYTES_MAX else metadata


def after_death(deaths: Deaths | None, offsets: int) -> Deaths | None:
    """Returns the deaths once the owner has died. `offsets`: from the position to the log's end.

    Once records are tried alone, a death with one in hand alone counts against it, and any other
    death for it: the process dies without it, too.
    """
    if deaths is None:
        return Deaths(1, min(offsets, SUSPECTS_MAX)) if offsets > 0 else None
    if deaths.times < ALONE_DEATHS or deaths.is_alone:
        return Deaths(min(deaths.times + 1, FATAL_DEATHS), deaths.offsets)
    return Deaths(ALONE_DEATHS, deaths.offsets)


def after_life(deaths: Deaths | None) -> Deaths | None:
    """Returns the deaths once the record is no more in hand."""
    return deaths and deaths._replace(is_alone=False)


def after_progress(deaths: Deaths | None, offsets: int) -> Deaths | None:
    """Returns the deaths once the committed offset has moved on by `offsets`.

    The other suspects are still tried alone, until one was the cause, or was not although a process
    died with it alone.
    """
    if deaths is None or offsets <= 0:
        return deaths
    if deaths.times != ALONE_DEATHS or offsets >= deaths.offsets:
        return None
    return Deaths(ALONE_DEATHS, deaths.offsets - offsets)

"""A consumer group of the broker in memory: members, target assignment, commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from carpool.kafka.clients import Position
from carpool.kafka.records import TopicPartition


class GroupMember(Protocol):
    """A member of a group. Its next poll applies its target assignment."""

    target: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class MemoryMembership:
    """A member of a group, in one generation of it."""

    group: str
    member: GroupMember
    generation: int


class ConsumerGroup:
    """Members and committed positions. Not thread-safe: the broker's lock guards it."""

    def __init__(
        self, partitions: Sequence[TopicPartition], commits: list[dict[TopicPartition, Position]]
    ) -> None:
        """`partitions`: of the topics that it reads. `commits`: receives every commit, in order."""
        self.members: list[GroupMember] = []
        self.generation = 0
        self.positions: dict[TopicPartition, Position] = {}
        self.partitions = partitions
        self._commits = commits
        self._written: dict[TopicPartition, int] = {}
        self._writes = 0

    def next_write(self) -> int:
        """Returns the number of the next offset among all that are written."""
        self._writes += 1
        return self._writes

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, Position]]) -> None:
        """Stores these positions, except those older than what is committed."""
        newer = {
            at: written for at, written in offsets.items() if written[0] > self._written.get(at, 0)
        }
        for at, (place, position) in newer.items():
            self.positions[at], self._written[at] = position, place
        self._commits.append({at: position for at, (_, position) in newer.items()})

    def is_current(self, membership: MemoryMembership) -> bool:
        """Whether this membership is of the present generation."""
        return membership.generation == self.generation and membership.member in self.members

    def assign(self, owners: Mapping[TopicPartition, GroupMember]) -> None:
        """Begins a generation in which partitions belong to these members."""
        self.generation += 1
        for member in self.members:
            member.target = frozenset(at for at, owner in owners.items() if owner is member)

    def join(self, member: GroupMember) -> None:
        """Adds a member and balances."""
        self.members.append(member)
        self._balance()

    def leave(self, member: GroupMember) -> None:
        """Removes a member and balances."""
        self.members.remove(member)
        member.target = frozenset()
        self._balance()

    def _balance(self) -> None:
        """Spreads the partitions over the members; each keeps what it can (cooperative-sticky)."""
        most = -(-len(self.partitions) // max(1, len(self.members)))
        owners: dict[TopicPartition, GroupMember] = {}
        shares = {id(member): 0 for member in self.members}
        for at in self.partitions:
            owner = next((m for m in self.members if at in m.target and shares[id(m)] < most), None)
            if owner is not None:
                owners[at] = owner
                shares[id(owner)] += 1
        for at in self.partitions:
            if self.members and at not in owners:
                owners[at] = min(self.members, key=lambda member: shares[id(member)])
                shares[id(owners[at])] += 1
        self.assign(owners)

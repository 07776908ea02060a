"""What `carpool status` knows of consumer groups and services: values only. Pure."""

from __future__ import annotations

import msgspec


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a consumer group. `partitions`: the (topic, partition) pairs assigned to it."""

    name: str
    host: str
    partitions: list[tuple[str, int]]


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """The records of a partition after the committed offset.

    `waiting` may count transaction markers between records, never at the end. `oldest_s`: the age
    of the first waiting record; None without one, or where it could not be read.
    """

    topic: str
    number: int
    waiting: int
    oldest_s: float | None = None
    member: str | None = None
    has_moved: bool = True
    """Whether the committed offset changed between the two looks, or no record waits."""


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The consumer group of a service. `state` as Kafka names it."""

    name: str
    state: str
    members: list[Member]
    partitions: list[Partition]

    @property
    def waiting(self) -> int:
        """Records that wait, over all partitions."""
        return sum(partition.waiting for partition in self.partitions)


class PartitionIdle(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of the service, and for how long it did not move while records waited."""

    topic: str
    number: int
    idle_s: float


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a service. `lag_records`: records after its position; None without an answer.

    `idle_s`: seconds since it last took in or finished a record, or no record waited.
    """

    name: str
    address: str
    state: str
    missing: list[str]
    reads: str
    notes: list[str] = []
    index: str | None = None
    """The version of the index that a grouper or searcher has open."""
    is_paused: bool = False
    lag_records: int | None = None
    idle_s: float | None = None
    in_flight: int | None = None
    consumed: int | None = None
    answers: dict[str, int] = {}
    dead_letters: int | None = None
    partitions: list[PartitionIdle] = []

    @property
    def answers_http(self) -> bool:
        """Whether the service answered."""
        return self.state != "down"

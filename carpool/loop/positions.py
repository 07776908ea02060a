"""The progress of all assigned partitions, and what of it is not committed yet."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from carpool.errors import DeploymentError
from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import runs_bytes
from carpool.kafka.records import TopicPartition
from carpool.loop.partition_progress import PartitionProgress
from carpool.loop.stage import Unit

RECORDS_AHEAD_MAX = 1_000_000
RUNS_STOP_BYTES = 3_072
"""A partition with longer runs in its commit metadata is full: brokers refuse 4,096 bytes."""


class Positions:
    """Thread-safe; short calls under one lock. Unknown partitions were revoked, and are skipped."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Guards what follows; `AloneUnits` uses it too."""
        self.progress: dict[TopicPartition, PartitionProgress] = {}
        self.moved: set[TopicPartition] = set()  # partitions to commit
        self._committed: dict[TopicPartition, int] = {}  # by this member
        self._owner: str | None = None

    def name(self, owner: str) -> None:
        """Names this member as the owner, by instance id, in the positions to commit."""
        self._owner = owner

    def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Adds these partitions, from their committed positions.

        Raises `DeploymentError` for metadata that cannot be read, and then adds none.
        """
        added = {}
        for at, position in positions.items():
            try:
                added[at] = PartitionProgress(position.offset, position.metadata, self._owner)
            except DeploymentError as error:
                raise DeploymentError(f"{at.topic}[{at.partition}]: {error}") from error
        with self.lock:
            self.progress |= added

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        with self.lock:
            return frozenset(self.progress)

    def take(self, at: TopicPartition, offset: int, parts: int) -> frozenset[int]:
        """Adds an accepted record, and returns the parts that an earlier process completed.

        All of them, if its partition is not assigned.
        """
        with self.lock:
            if (progress := self.progress.get(at)) is None:
                return frozenset(range(parts))
            done = progress.take(offset, parts)
            if len(done) == parts:
                self.moved.add(at)
            return done

    def complete(self, unit: Unit[Any], part: int) -> None:
        """Marks a part as complete: its outputs are written."""
        with self.lock:
            if (progress := self.progress.get(unit.at)) is not None:
                progress.complete(unit.source.offset, part)
                self.moved.add(unit.at)

    def after(self, parts: Iterable[tuple[Unit[Any], int]]) -> dict[TopicPartition, Position]:
        """Returns the positions of moved partitions as they will be once these are complete too.

        Changes nothing.
        """
        with self.lock:
            done: dict[TopicPartition, dict[int, set[int]]] = {at: {} for at in self.moved}
            for unit, part in parts:
                if unit.at in self.progress:
                    done.setdefault(unit.at, {}).setdefault(unit.source.offset, set()).add(part)
            return {at: self.progress[at].position_with(each) for at, each in done.items()}

    def committed(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Notes that these positions are committed."""
        with self.lock:
            for at, position in positions.items():
                progress = self.progress.get(at)
                if progress is None or position.offset is None:
                    continue
                self._committed[at] = position.offset
                if progress.position_with({}) == position:
                    self.moved.discard(at)

    def committed_offsets(self) -> dict[TopicPartition, int]:
        """Returns the last offset that this member committed, by assigned partition."""
        with self.lock:
            return dict(self._committed)

    @property
    def has_uncommitted(self) -> bool:
        """Whether a completed part waits for its commit."""
        return bool(self.moved)

    def full(self) -> frozenset[TopicPartition]:
        """Returns the partitions that must not be read on until a slow record is complete.

        They are `RECORDS_AHEAD_MAX` offsets ahead of that record, or their commit metadata is
        nearly as long as brokers accept. A partition without records in flight is never full: it
        must accept its slow record first.
        """
        with self.lock:
            return frozenset(
                at
                for at, progress in self.progress.items()
                if progress.in_flight
                and (
                    progress.ahead >= RECORDS_AHEAD_MAX
                    or runs_bytes(progress.position_with({}).metadata) > RUNS_STOP_BYTES
                )
            )

    def revoke(self, partitions: frozenset[TopicPartition]) -> None:
        """Forgets these partitions."""
        with self.lock:
            for at in partitions:
                self.progress.pop(at, None)
                self._committed.pop(at, None)
                self.moved.discard(at)

    def give_up(self, partitions: frozenset[TopicPartition]) -> None:
        """Lets the next commit say that no one has these partitions in hand."""
        with self.lock:
            for at in partitions & self.progress.keys():
                self.progress[at].give_up()
                self.moved.add(at)

"""A broker in memory: topics, consumer groups with rebalances, commits with metadata. For tests of the loop.

It keeps what the loop relies on: records in order, cooperative rebalances inside `poll`, positions that survive members,
`commit` refused to a member that left. Absent: transactions, retention, time-outs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from carpool.clock import Clock
from carpool.errors import CarpoolError, ConfigError, DeploymentError, FencedError, RetryableError
from carpool.kafka.clients import CommitResult, Position, RebalanceListener, TopicPartition
from carpool.kafka.stage import Message, Output
from schemas.record import Headers, Source


@dataclass(slots=True)
class _Stored:
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


@dataclass(slots=True)
class _Group:
    members: list[MemoryConsumer] = field(default_factory=list)
    positions: dict[TopicPartition, Position] = field(default_factory=dict)


class MemoryBroker:
    """Topics and consumer groups in one process. Thread-safe. `faults` lets a test break the next calls."""

    def __init__(self, clock: Clock, topics: Mapping[str, int]) -> None:
        """Makes the topics; `topics` maps a name to its number of partitions."""
        self.clock = clock
        self.lock = threading.RLock()
        self.logs: dict[TopicPartition, list[_Stored]] = {}
        self.partitions = dict(topics)
        self.groups: dict[str, _Group] = {}
        self.commit_faults: deque[CarpoolError] = deque()
        self.produce_faults: deque[CarpoolError] = deque()
        self.commits: list[dict[TopicPartition, Position]] = []
        for topic, count in topics.items():
            for partition in range(count):
                self.logs[TopicPartition(topic, partition)] = []

    def append(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> int:
        """Appends a record and returns its offset; by default to the partition that the bytes of the key choose."""
        with self.lock:
            if topic not in self.partitions:
                raise ConfigError(f"topic {topic} does not exist; create it first")
            chosen = sum(key or b"") % self.partitions[topic] if partition is None else partition
            log = self.logs[TopicPartition(topic, chosen)]
            log.append(_Stored(key, value, headers, self.clock.now_us() // 1_000))
            return len(log) - 1

    def records(self, topic: str) -> list[Message]:
        """Returns every record of a topic, partition by partition."""
        with self.lock:
            return [
                self.message(at, offset)
                for at in sorted(self.logs)
                if at.topic == topic
                for offset in range(len(self.logs[at]))
            ]

    def message(self, at: TopicPartition, offset: int) -> Message:
        """Returns one stored record."""
        stored = self.logs[at][offset]
        source = Source(topic=at.topic, partition=at.partition, offset=offset, timestamp_ms=stored.timestamp_ms)
        return Message(
            source=source, key=stored.key, value=stored.value, headers=stored.headers, received_us=self.clock.now_us()
        )

    def committed(self, group: str) -> dict[TopicPartition, Position]:
        """Returns what a consumer group committed."""
        with self.lock:
            return dict(self.groups[group].positions) if group in self.groups else {}

    def assign(self, group: str, owners: Mapping[int, MemoryConsumer]) -> None:
        """Moves partitions by number; members learn of it in their next `poll`, the losers first."""
        with self.lock:
            for member in self.groups[group].members:
                member.target = frozenset(
                    TopicPartition(member.topic, n) for n, owner in owners.items() if owner is member
                )

    def balance(self, group: _Group) -> None:
        """Spreads the partitions over the members, keeping what each has where it can (cooperative-sticky)."""
        if not group.members:
            return
        topic = group.members[0].topic
        spread: dict[int, set[TopicPartition]] = {id(member): set() for member in group.members}
        most = -(-self.partitions[topic] // len(group.members))
        homeless = []
        for partition in range(self.partitions[topic]):
            at = TopicPartition(topic, partition)
            owner = next((m for m in group.members if at in m.target and len(spread[id(m)]) < most), None)
            if owner is None:
                homeless.append(at)
            else:
                spread[id(owner)].add(at)
        for at in homeless:
            spread[min(spread, key=lambda member: len(spread[member]))].add(at)
        for member in group.members:
            member.target = frozenset(spread[id(member)])


class MemoryConsumer:
    """A `ConsumerClient` of a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker, group: str) -> None:
        self._broker = broker
        self._group = group
        self._listener: RebalanceListener | None = None
        self._next: dict[TopicPartition, int] = {}
        self._paused = False
        self._requests: deque[tuple[dict[TopicPartition, Position], CommitResult]] = deque()
        self.topic = ""
        self.target: frozenset[TopicPartition] = frozenset()

    def subscribe(self, topic: str, listener: RebalanceListener) -> None:
        """Joins the group."""
        with self._broker.lock:
            if topic not in self._broker.partitions:
                raise ConfigError(f"topic {topic} does not exist; create it first")
            self.topic, self._listener = topic, listener
            group = self._broker.groups.setdefault(self._group, _Group())
            group.members.append(self)
            self._broker.balance(group)

    def poll(self, timeout_s: float) -> Message | None:
        """Returns the next record of any assigned partition, or None at once: nothing here ever waits."""
        self._serve_commits()
        self._rebalance()
        with self._broker.lock:
            if self._paused:
                return None
            for at in sorted(self._next):
                offset = self._next[at]
                if offset > len(self._broker.logs[at]):
                    raise DeploymentError(
                        f"offset {offset} of {at} is beyond the end of the log; reset the group's offsets"
                    )
                if offset < len(self._broker.logs[at]):
                    self._next[at] += 1
                    return self._broker.message(at, offset)
        return None

    def _rebalance(self) -> None:
        listener = self._listener
        assert listener is not None, "poll before subscribe"
        with self._broker.lock:
            gone = frozenset(self._next) - self.target
        if gone:
            self._requests.clear()
            listener.revoked(gone, lost=False)
        with self._broker.lock:
            for at in gone:
                del self._next[at]
            others = [m for m in self._broker.groups[self._group].members if m is not self]
            came = [at for at in sorted(self.target) if at not in self._next and not any(at in m._next for m in others)]
            positions = {at: self._broker.groups[self._group].positions.get(at, Position(None, "")) for at in came}
            self._next |= {at: position.offset or 0 for at, position in positions.items()}
        if positions:
            listener.assigned(positions)

    def pause(self) -> None:
        """Stops the flow of records."""
        self._paused = True

    def resume(self) -> None:
        """Lets records flow again."""
        self._paused = False

    def waiting(self) -> dict[TopicPartition, int]:
        """Returns the records after the position of each assigned partition."""
        with self._broker.lock:
            return {at: len(self._broker.logs[at]) - offset for at, offset in self._next.items()}

    def commit(self, offsets: Mapping[TopicPartition, Position], on_result: CommitResult) -> None:
        """Leaves a request, which the next `poll` serves."""
        self._requests.append((dict(offsets), on_result))

    def _serve_commits(self) -> None:
        while self._requests:
            offsets, on_result = self._requests.popleft()
            try:
                self.commit_now(offsets)
            except (RetryableError, FencedError) as error:
                on_result(error)
            else:
                on_result(None)

    def commit_now(self, offsets: Mapping[TopicPartition, Position]) -> None:
        """Commits. As with real brokers, ownership of the partitions is not checked, membership is."""
        with self._broker.lock:
            group = self._broker.groups[self._group]
            if self not in group.members:
                raise FencedError("this member has left the group; what it commits now is refused")
            if self._broker.commit_faults:
                raise self._broker.commit_faults.popleft()
            group.positions.update(offsets)
            self._broker.commits.append(dict(offsets))

    def close(self) -> None:
        """Hands the partitions back and leaves."""
        with self._broker.lock:
            group = self._broker.groups.get(self._group)
            if group is None or self not in group.members:
                return
            self.target = frozenset()
        self._rebalance()
        with self._broker.lock:
            group.members.remove(self)
            self._broker.balance(group)

    def crash(self) -> None:
        """Leaves as a killed process does: nothing is handed back, nothing committed."""
        with self._broker.lock:
            group = self._broker.groups[self._group]
            group.members.remove(self)
            self._next.clear()
            self.target = frozenset()
            self._broker.balance(group)


class MemoryProducer:
    """A `ProducerClient` of a `MemoryBroker`. Deliveries are reported by `poll`, as with the real one."""

    def __init__(self, broker: MemoryBroker, queue_max: int = 100_000) -> None:
        self._broker = broker
        self._queue_max = queue_max
        self._reports: deque[tuple[Callable[[CarpoolError | None], None], CarpoolError | None]] = deque()

    def produce(self, output: Output, on_delivery: Callable[[CarpoolError | None], None]) -> bool:
        """Appends the record at once; False when too many reports wait."""
        if len(self._reports) >= self._queue_max:
            return False
        error: CarpoolError | None = None
        with self._broker.lock:
            if self._broker.produce_faults:
                error = self._broker.produce_faults.popleft()
            else:
                try:
                    self._broker.append(
                        output.topic, output.value, key=output.key, headers=output.headers, partition=output.partition
                    )
                except ConfigError as missing:
                    error = missing
        self._reports.append((on_delivery, error))
        return True

    def poll(self, timeout_s: float) -> None:
        """Reports what was produced since the last call."""
        while self._reports:
            on_delivery, error = self._reports.popleft()
            on_delivery(error)

    def close(self, timeout_s: float) -> int:
        """Reports the rest."""
        self.poll(0)
        return 0

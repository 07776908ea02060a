"""A table reads the readable partitions while others cannot be read."""

from __future__ import annotations

from collections.abc import Sequence

from carpool.errors import CarpoolError, RetryableError
from carpool.kafka.records import Message
from carpool.kafka.topic_table import RETRY_US, TopicTable
from schemas.topics import ANSWERS, RETRIEVALS
from tests.clocks import HandClock
from tests.memory_broker.broker import MemoryBroker
from tests.memory_broker.table_log import MemoryAnswersLog


class Rows:
    """Keeps what the table reads."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.read: list[int] = []
        self.fetched: list[int] = []

    def rows_read(self, messages: Sequence[Message]) -> None:
        self.values += [message.value for message in messages]

    def partition_read(self, partition: int) -> None:
        self.read.append(partition)

    def row_fetched(self, request_id: int, offset: int, message: Message | None) -> None:
        self.fetched.append(request_id)

    def table_failed(self, error: CarpoolError) -> None:
        raise error


class Leaderless(MemoryAnswersLog):
    """Some partitions have no leader."""

    def __init__(self, broker: MemoryBroker, *partitions: int) -> None:
        super().__init__(broker)
        self.leaderless = set(partitions)
        self.asked = 0

    def end(self, partition: int) -> int:
        self.asked += 1
        if partition in self.leaderless:
            raise RetryableError(f"partition {partition} has no leader")
        return super().end(partition)


class Rig:
    """A table over a broker in memory, stepped by hand."""

    def __init__(self, *leaderless: int, rows_max: int = 1_000) -> None:
        self.clock, self.rows = HandClock(), Rows()
        self.broker = MemoryBroker(self.clock, {ANSWERS.name: 3, RETRIEVALS.name: 3})
        self.reader = Leaderless(self.broker, *leaderless)
        self.table = TopicTable(
            self.reader, self.rows, self.clock, horizon_ms=1_000, rows_max=rows_max
        )

    def write(self, partition: int, value: bytes) -> None:
        self.broker.append(ANSWERS.name, value, partition=partition)


def test_other_partitions_are_read_while_one_has_no_leader() -> None:
    rig = Rig(0, 1)
    rig.write(2, b"a")
    rig.table.read([0, 1, 2])
    rig.table.step()
    assert rig.table.trouble is not None and "no leader" in rig.table.trouble
    rig.table.step()
    assert (rig.rows.read, rig.rows.values) == ([2], [b"a"])
    rig.write(2, b"b")
    rig.table.step()
    assert rig.rows.values == [b"a", b"b"]
    assert rig.table.trouble is not None


def test_a_failed_read_is_retried_after_a_pause_and_holds_up_no_fetch() -> None:
    rig = Rig(0)
    rig.table.read([0])
    rig.table.step()
    rig.table.fetch(7, 0, 0)
    rig.table.step()
    assert (rig.reader.asked, rig.rows.fetched) == (1, [])
    rig.clock.time_us += RETRY_US
    rig.table.step()
    assert (rig.reader.asked, rig.rows.fetched) == (2, [7])
    rig.reader.leaderless.clear()
    rig.clock.time_us += RETRY_US
    rig.table.step()
    assert (rig.reader.asked, rig.rows.read, rig.table.trouble) == (3, [0], None)


def test_a_partition_is_read_from_the_later_of_the_two_bounds() -> None:
    rig = Rig(rows_max=2)
    for number in range(6):
        rig.write(0, b"%d" % number)
    rig.clock.time_us += 10_000_000
    rig.write(1, b"young")
    rig.table.read([0, 1])
    rig.table.step()
    assert rig.rows.values == [b"young"], "records of partition 0 are too old"
    many = Rig(rows_max=2)
    for number in range(6):
        many.write(0, b"%d" % number)
    many.table.read([0])
    many.table.step()
    assert many.rows.values == [b"2", b"3", b"4", b"5"], "twice the rows: half may be markers"


def test_a_table_may_read_older_records_where_none_is_in_the_horizon() -> None:
    """With a clock that is ten years ahead, none ever is."""
    rig = Rig()
    rig.table.reads_older = True
    rig.write(0, b"a")
    rig.clock.time_us += 2_000_000
    rig.write(0, b"b")
    rig.clock.lead_us = 10 * 365 * 86_400_000_000
    rig.table.read([0, 1])
    rig.table.step()
    assert (rig.rows.values, rig.rows.read) == ([b"a", b"b"], [0, 1])


def test_a_forgotten_partition_is_not_followed_and_only_its_new_records_are_read_later() -> None:
    rig = Rig()
    rig.write(0, b"a")
    rig.table.read([0, 1])
    rig.table.step()
    rig.table.forget([0])
    rig.write(0, b"b")
    rig.write(1, b"c")
    rig.table.step()
    assert rig.rows.values == [b"a", b"c"]
    rig.table.read([0])
    rig.table.forget([0])
    rig.table.step()
    assert rig.rows.read == [0, 1]
    rig.table.read([0])
    rig.table.step()
    assert (rig.rows.values, rig.rows.read) == ([b"a", b"c", b"b"], [0, 1, 0])

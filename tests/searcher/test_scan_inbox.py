"""Scans of other lanes reach the queries that wait for them, in any order, and are bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from carpool.clock import SystemClock
from schemas.codec import encode
from schemas.scan import Scan
from schemas.topics import GROUPS, SCANS
from searcher.scatter import scan_inbox
from searcher.scatter.scan_inbox import ScanInbox
from searcher.scatter.scan_records import name_in_scan
from tests.memory_broker.broker import MemoryBroker
from tests.memory_broker.table_log import MemoryScansLog
from tests.records import a_scan
from tests.waiting import wait_until

LANES = 2


class Inbox:
    """An inbox at work, and what it delivered."""

    def __init__(self) -> None:
        self.broker = MemoryBroker(SystemClock(), {SCANS.name: LANES, GROUPS.name: LANES})
        self.came: list[tuple[int, int]] = []  # key of the search, lane of the scan
        self.inbox = ScanInbox(
            MemoryScansLog(self.broker),
            lambda key, scan: self.came.append((key, scan.lane)),
            lambda error: pytest.fail(str(error)),
            SystemClock(),
        )
        self.inbox.start()

    def write(self, scan: Scan, partition: int = 0) -> None:
        value, headers = encode(scan, event_id="e", source="s", time_us=1)
        self.broker.append(SCANS.name, value, headers=headers, partition=partition)

    def wait(self, is_reached: Callable[[], bool]) -> None:
        wait_until(is_reached, lambda: self.came)


@pytest.fixture
def here() -> Iterator[Inbox]:
    found = Inbox()
    yield found
    found.inbox.close()


def of_window(window_id: int, lane: int = 1) -> Scan:
    return msgspec.structs.replace(a_scan(), window_id=window_id, lane=lane)


def test_a_scan_may_come_before_and_after_its_query(here: Inbox) -> None:
    here.write(of_window(1))
    here.inbox.read({0})
    here.inbox.expect(name_in_scan(of_window(2)), 7, {1})
    here.write(of_window(2))
    here.wait(lambda: here.came == [(7, 1)])
    here.inbox.expect(name_in_scan(of_window(1)), 8, {1})
    here.wait(lambda: here.came == [(7, 1), (8, 1)])


def test_only_the_own_lanes_are_read_and_a_strange_record_is_passed_over(here: Inbox) -> None:
    here.inbox.read({1})
    for window_id in (1, 2):
        here.inbox.expect(name_in_scan(of_window(window_id)), window_id, {1})
    here.write(of_window(1), partition=0)
    here.broker.append(SCANS.name, b"{", partition=1)
    here.write(of_window(2), partition=1)
    here.wait(lambda: here.came == [(2, 1)])


def test_a_query_that_has_ended_gets_nothing_and_another_lane_keeps_its_own(here: Inbox) -> None:
    here.inbox.read({0})
    query = name_in_scan(of_window(1))
    here.inbox.expect(query, 1, {1})
    here.inbox.forget(query, 99)  # the search of another lane for the same query
    here.write(of_window(1))
    here.wait(lambda: here.came == [(1, 1)])
    here.inbox.forget(query, 1)
    here.write(of_window(1, lane=0))
    here.inbox.expect(name_in_scan(of_window(2)), 2, {1})
    here.write(of_window(2))
    here.wait(lambda: here.came == [(1, 1), (2, 1)])


def test_the_oldest_scans_leave_when_there_are_too_many(
    here: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_inbox, "KEPT_BYTES_MAX", 10 * (scan_inbox.SCAN_BYTES + 24))
    here.inbox.read({0})
    for window_id in range(30):
        here.write(of_window(window_id))
    here.inbox.expect(name_in_scan(of_window(99)), 99, {1})
    here.write(of_window(99))
    here.wait(lambda: here.came == [(99, 1)])
    for window_id in range(30):
        here.inbox.expect(name_in_scan(of_window(window_id)), window_id, {1})
    assert {key for key, _ in here.came} == {99, *range(21, 30)}

"""Clocks of hosts that are wrong, and that are set while a service runs."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from carpool.clock import SystemClock
from carpool.intakes import group_intake, retrieval_intake
from carpool.kafka.records import Message, TopicPartition
from carpool.loop.work_observer import MINUTE_US, Tracer, WorkObserver
from carpool.origins import deadline_us_of
from carpool.telemetry.metrics import Metrics
from schemas.codec import encode
from schemas.record import Record
from schemas.retrieval import Retrieval
from tests.clocks import HandClock
from tests.records import a_group, a_grouped_query, a_message, a_query, a_retrieval

S = 1_000_000
HOUR = 3_600 * S
AT = TopicPartition("rag.queries.v1", 0)


class Host:
    """A service whose host's clock has this lead over the time stamps of records."""

    def __init__(self, ahead_us: int) -> None:
        self.ahead_us, self.clock, self.metrics = ahead_us, HandClock(), Metrics()
        self.observer = WorkObserver(
            metrics=self.metrics, clock=self.clock, tracer=Tracer(), stalled_after_us=HOUR
        )
        self.observer.assigned([AT])
        self.clock.time_us += MINUTE_US  # the first minute shows what waited before
        self.observer.review({})

    def notes(self, *waits_us: int, waiting: int = 0, pass_us: int = MINUTE_US) -> str:
        """Returns what is told after some time with records of these waits."""
        for wait_us in waits_us:
            lead_us = self.clock.host_lead_us()
            stamp_us = self.clock.time_us + lead_us - self.ahead_us - wait_us
            message = a_message(timestamp_ms=stamp_us // 1_000, received_us=self.clock.time_us)
            self.observer.taken(replace(message, host_lead_us=lead_us))
        self.observer.review({AT: waiting})
        self.clock.time_us += pass_us
        self.observer.review({AT: 0})
        return "".join(self.observer.clock_notes)

    def behind_s(self) -> float | None:
        return self.metrics.registry.get_sample_value("carpool_clock_behind_seconds")


def test_a_clock_that_is_ahead_is_told_until_it_is_set() -> None:
    host = Host(ahead_us=HOUR)
    assert "3,601 s ahead of" in host.notes(9 * S, S)
    assert host.behind_s() == -3_601
    host.clock.lead_us, host.ahead_us = -HOUR, 0
    assert host.notes(S) == ""
    assert host.behind_s() == -1


def test_a_clock_that_is_behind_is_told_at_the_first_record_from_the_future() -> None:
    host = Host(ahead_us=-HOUR)
    assert "3,600 s behind" in host.notes(0, waiting=9, pass_us=0)
    assert host.behind_s() == 3_600
    host.clock.lead_us, host.ahead_us = HOUR, 0
    host.notes(S)
    assert host.notes(S) == ""


def test_records_that_waited_long_show_no_clock_that_is_ahead() -> None:
    host = Host(ahead_us=0)
    host.observer.assigned([AT])
    assert host.notes(HOUR, pass_us=MINUTE_US - 1) == "", "a partition came after an outage"
    host.clock.time_us += 1
    host.observer.review({})
    assert host.notes(HOUR, HOUR, waiting=1) == "", "a backlog"
    assert host.notes(HOUR, S) == "", "one record did not wait"
    assert host.notes() == ""


def test_deadlines_follow_a_clock_that_is_set_and_waits_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, real_ns = SystemClock(), time.time_ns
    began_us = clock.now_us()
    assert clock.host_lead_us() == 0
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() - HOUR * 1_000)
    assert abs(clock.now_us() - began_us) < HOUR // 2
    assert abs(clock.host_lead_us() + HOUR) < HOUR // 2


def test_a_service_takes_deadlines_by_its_own_clock_whatever_the_writer_had() -> None:
    message = replace(a_message(timestamp_ms=5_000), host_lead_us=-HOUR)
    query, past = a_query(deadline=9_000), a_query(deadline=0)
    assert message.written_us == 5 * S + HOUR

    def read(record: Record) -> Message:
        value, headers = encode(record, event_id="e", source="s", time_us=0)
        return replace(message, value=value, headers=headers)

    queries = a_grouped_query(query, deadline_us=7), a_grouped_query()
    group = group_intake().decode(read(a_group(*queries)))
    assert [each.deadline_us for each in group.queries] == [9 * S + HOUR, None]
    retrieval = retrieval_intake().decode(read(a_retrieval(query)))
    assert isinstance(retrieval, Retrieval) and retrieval.deadline_us == 9 * S + HOUR
    assert deadline_us_of(past, replace(message, host_lead_us=HOUR)) == 0, "no time below 0"

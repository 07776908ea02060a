"""Members join, leave and are killed under load: no gap, no duplicate.

Members copy records: all services share their loop.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.core.accounting import account
from bench.core.copy_loop import CopyLoad, CopyLoop, copy_of, make_topics
from bench.core.topic_recorder import TopicRecorder
from bench.reliability.torn_member import GROUP, NAME, SOURCE, Members
from carpool.clock import SystemClock
from carpool.kafka.fencing import transactional_id
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaServer
from carpool.testing.transactions import describe_transaction

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

COPIES = copy_of(SOURCE)
PARTITIONS = 6
PHASE_S = 3.0
TRIES_MAX = 500


@contextmanager
def a_member(bootstrap: str, name: str) -> Iterator[None]:
    settings = KafkaSettings(bootstrap=bootstrap, instance_id=name)
    member = CopyLoop(settings, delivery="exactly_once", group=GROUP, source=SOURCE, in_flight=50)
    member.start()
    time.sleep(PHASE_S)
    yield
    member.stop()


@contextmanager
def under_load(folder: Path) -> Iterator[str]:
    """Yields brokers with a load and a member; in the end every record must have one copy."""
    with KafkaServer(folder / "broker") as server:
        kafka = KafkaSettings(bootstrap=server.bootstrap)
        make_topics(kafka, SOURCE, PARTITIONS)
        load = CopyLoad(kafka, SOURCE, partitions=PARTITIONS, rate_per_s=120)
        recorder = TopicRecorder(kafka, [COPIES], SystemClock())
        with recorder, a_member(server.bootstrap, "first"):
            load.start()
            yield server.bootstrap
            wanted = load.end()
            recorder.wait(wanted, (COPIES,), stalled_s=30, settle_s=2)
        found = account(wanted, (record.key for record in recorder.records(COPIES)))
        assert found.holds, found
        assert found.published > 300


@pytest.mark.long
def test_from_one_member_to_three_and_back_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with under_load(tmp_path) as bootstrap:
        with a_member(bootstrap, "second"), a_member(bootstrap, "third"):
            time.sleep(PHASE_S)
        time.sleep(PHASE_S)


def test_work_of_a_member_killed_inside_a_transaction_is_done_once_by_the_others(
    tmp_path: Path,
) -> None:
    with under_load(tmp_path) as bootstrap:
        members = Members(bootstrap, tmp_path / "member.log")
        members.start()
        time.sleep(PHASE_S)
        kill_in_transaction(bootstrap, members)
        time.sleep(PHASE_S)
        members.close()


def kill_in_transaction(bootstrap: str, members: Members) -> None:
    for _ in range(TRIES_MAX):
        os.kill(members.pid, signal.SIGSTOP)
        time.sleep(0.01)  # the broker handles what the victim had sent
        found = describe_transaction(bootstrap, transactional_id(GROUP, NAME))
        if found is not None and found.holds_offsets:
            return members.kill()
        os.kill(members.pid, signal.SIGCONT)
        time.sleep(0.02)
    raise AssertionError("the member was never inside a transaction that contained offsets")

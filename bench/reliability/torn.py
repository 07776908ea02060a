"""The run of `carpool bench torn`: ends of transactions that arrive in a later transaction.

A proxy holds the request that ends a transaction, and cuts the connection. The member asks again,
and that request arrives. The held one is released while the next transaction is open: brokers that
took it for the end of that one would commit its records without its offsets (KIP-890, librdkafka
issue 5423).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench.core.accounting import Accounting, account
from bench.core.copy_loop import CopyLoad, copy_of, make_topics
from bench.core.kafka import fresh_folder
from bench.core.run import ServicesRun
from bench.core.topic_recorder import TopicRecorder
from bench.reliability.options import TornOptions
from bench.reliability.torn_member import SOURCE, Members
from carpool.clock import SystemClock
from carpool.errors import CarpoolError
from carpool.kafka.embedded import free_port
from carpool.kafka.settings import KafkaSettings
from carpool.testing.fault_proxy import END_TXN, PRODUCE, TXN_OFFSET_COMMIT, FaultProxy
from carpool.testing.kafka import KafkaServer, free_ports

BROKERS, PARTITIONS = 4, 4
RATE_PER_S = 50.0
WAIT_S = 60.0
SETTLE_S = 0.03
"""For the broker to handle a released request."""
NOTE_EVERY = 50
SHORT_SESSIONS = {
    "group.consumer.session.timeout.ms": 1_000,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.heartbeat.interval.ms": 300,
}
"""A killed member gives its partitions up after a second."""


class TornResult(msgspec.Struct, frozen=True, kw_only=True):
    """The records of all brokers."""

    published: int
    lost: int
    twice: int


def run(options: TornOptions, brokers: int = BROKERS) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Raises `CarpoolError`.

    Each broker has a proxy, a member and a load of its own, and its share of the ends.
    """
    run = ServicesRun("torn", options)

    def on_broker(number: int) -> Accounting:
        return measure(
            ends=options.ends // brokers + (number < options.ends % brokers),
            kills=options.kills // brokers + (number < options.kills % brokers),
            folder=run.folder / f"broker-{number + 1}",
            note=lambda text: run.note(f"broker {number + 1}: {text}"),
        )

    with ThreadPoolExecutor(brokers) as pool:
        found = list(pool.map(on_broker, range(brokers)))
    result = TornResult(
        published=sum(each.published for each in found),
        lost=sum(each.missing for each in found),
        twice=sum(each.duplicates for each in found),
    )
    promises = {
        "nothing lost": not result.lost,
        "nothing torn and nothing twice, for readers of committed records": not result.twice,
    }
    return run.finish({"torn": result}, promises=promises, results=result)


def measure(*, ends: int, kills: int, folder: Path, note: Callable[[str], None]) -> Accounting:
    """Delays ends of transactions under a load on one broker, and reads all copies. Blocks."""
    with ExitStack() as opened:
        data = opened.enter_context(fresh_folder(folder / "broker"))
        ports = free_ports(advertised=free_port())
        opened.enter_context(KafkaServer(data, ports=[ports], settings=SHORT_SESSIONS))
        proxy = opened.enter_context(FaultProxy(ports.advertised, ports.clients))
        direct = KafkaSettings(bootstrap=f"127.0.0.1:{ports.brokers}")
        make_topics(direct, SOURCE, PARTITIONS)
        copies = TopicRecorder(direct, [copy_of(SOURCE)], SystemClock())
        opened.enter_context(copies)
        members = Members(proxy.bootstrap, folder / "member.log")
        opened.callback(members.close)
        members.start()
        load = CopyLoad(direct, SOURCE, partitions=PARTITIONS, rate_per_s=RATE_PER_S)
        load.start()
        killed = 0
        for number in range(ends):
            is_kill = killed < kills * (number + 1) // ends
            _delay_one_end(proxy, members, is_kill=is_kill)
            killed += is_kill
            if (number + 1) % NOTE_EVERY == 0:
                note(f"{number + 1} ends delayed, {killed} kills, {load.published:,} records")
        wanted = load.end()
        copies.wait(wanted, (copy_of(SOURCE),), stalled_s=WAIT_S, settle_s=1.0)
        return account(wanted, (record.key for record in copies.records(copy_of(SOURCE))))


def _delay_one_end(proxy: FaultProxy, members: Members, *, is_kill: bool) -> None:
    """Delays the end of one transaction into the next one, and may kill the member in that one.

    A kill comes before the records of the later transaction are written.
    """
    end = proxy.hold(END_TXN)
    _await(members, end.wait)
    later = proxy.hold(PRODUCE if is_kill else TXN_OFFSET_COMMIT)
    proxy.cut()
    _await(members, later.wait)
    if is_kill:
        members.kill()
    end.release()
    time.sleep(SETTLE_S)
    later.release()
    if is_kill:
        members.start()


def _await(members: Members, wait: Callable[[float], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not wait(0.5):
        if members.has_ended:
            raise CarpoolError("the member ended by itself: see member.log")
        if time.monotonic() > until_s:
            raise CarpoolError(f"no such request came within {WAIT_S:g} s: see member.log")

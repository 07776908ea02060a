"""The run of `carpool bench torn`: ends of transactions that arrive in a later transaction.

A proxy holds the request that ends a transaction, and cuts the connection. The member asks again,
and that request arrives. The held one is released while the next transaction is open: brokers that
took it for the end of that one would commit its records without its offsets (KIP-890, librdkafka
issue 5423).
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from bench.core.copy_loop import VALUE, copy_of, make_topics
from bench.core.kafka import fresh_folder
from bench.core.services_run import begin_run
from bench.reliability.cli import TornOptions
from bench.reliability.torn_member import Member
from carpool.clock import SystemClock
from carpool.errors import CarpoolError
from carpool.kafka.client_config import producer_config
from carpool.kafka.embedded import free_port
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from carpool.testing.fault_proxy import END_TXN, PRODUCE, TXN_OFFSET_COMMIT, FaultProxy
from carpool.testing.kafka import KafkaServer, free_ports

SOURCE, GROUP, PARTITIONS = "torn", "torn-copy", 4
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


Note = Callable[[str], None]
Wait = Callable[[float], bool]


class TornResult(msgspec.Struct, frozen=True, kw_only=True):
    """The counts. `delayed`: ends of transactions that arrived in a later transaction."""

    delayed: int
    killed: int
    published: int
    lost: int
    twice: int
    took_s: float


class _Load(threading.Thread):
    """Publishes numbered records at a steady rate, past the proxy."""

    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__(name="load", daemon=True)
        self._producer = Producer(producer_config(settings))
        self._ending = threading.Event()
        self.published = 0

    def run(self) -> None:
        for number in itertools.count():
            if self._ending.wait(1 / RATE_PER_S):
                return
            key = str(number).encode()
            self._producer.produce(SOURCE, VALUE, key, partition=number % PARTITIONS)
            self._producer.poll(0)
            self.published += 1

    def end(self) -> None:
        """Ends the load when every record is acknowledged. Raises `CarpoolError`."""
        self._ending.set()
        self.join()
        if left := self._producer.flush(WAIT_S):
            raise CarpoolError(f"{left} records were not acknowledged")


class _Members:
    """One member at a time, and the next one, which has imported its modules already."""

    def __init__(self, member: Member, log_file: Path) -> None:
        self._argument = msgspec.json.encode(member).decode()
        self._log_file = log_file
        self._now = self._next = self._prepare()

    def _prepare(self) -> subprocess.Popen[bytes]:
        command = (sys.executable, "-m", "bench.reliability.torn_member", self._argument)
        with self._log_file.open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )

    def start(self) -> None:
        """Lets the next member join the group, and prepares the one after it."""
        self._now = self._next
        assert self._now.stdin is not None and self._now.stdout is not None
        self._now.stdout.readline()
        self._now.stdin.write(b"\n")
        self._now.stdin.flush()
        self._next = self._prepare()

    def kill(self) -> None:
        """Ends the member as a crash does."""
        self._now.kill()
        self._now.wait()

    @property
    def has_ended(self) -> bool:
        """Whether the member ended by itself."""
        return self._now.poll() is not None

    def close(self) -> None:
        """Ends all."""
        for process in (self._now, self._next):
            process.kill()
            process.wait()


def run(options: TornOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Raises `CarpoolError`.

    Each broker has a proxy, a member and a load of its own, and its share of the ends.
    """
    run = begin_run("torn", options)
    lanes = options.brokers
    with ThreadPoolExecutor(lanes) as pool:
        found = list(
            pool.map(
                lambda lane: measure(
                    ends=_share(options.ends, lane, lanes),
                    kills=_share(options.kills, lane, lanes),
                    folder=run.folder / f"broker-{lane + 1}",
                    note=lambda text: run.note(f"broker {lane + 1}: {text}"),
                ),
                range(lanes),
            )
        )
    result = TornResult(
        delayed=sum(each.delayed for each in found),
        killed=sum(each.killed for each in found),
        published=sum(each.published for each in found),
        lost=sum(each.lost for each in found),
        twice=sum(each.twice for each in found),
        took_s=max(each.took_s for each in found),
    )
    return run.finish(
        lambda console: show(console, result),
        promises={
            f"{options.ends} ends of transactions were delayed into a later one": result.delayed
            == options.ends,
            "nothing lost": not result.lost,
            "nothing torn and nothing twice, for readers of committed records": not result.twice,
        },
        results=result,
    )


def _share(total: int, lane: int, lanes: int) -> int:
    return total // lanes + (lane < total % lanes)


def measure(*, ends: int, kills: int, folder: Path, note: Note) -> TornResult:
    """Delays ends of transactions under a load on one broker, and reads all copies. Blocks."""
    with ExitStack() as opened:
        data = opened.enter_context(fresh_folder(folder / "broker"))
        ports = free_ports(advertised=free_port())
        opened.enter_context(KafkaServer(data, ports=[ports], settings=SHORT_SESSIONS))
        proxy = opened.enter_context(FaultProxy(ports.advertised, ports.clients))
        direct = KafkaSettings(bootstrap=f"127.0.0.1:{ports.brokers}")
        make_topics(direct, SOURCE, PARTITIONS)
        member = Member(bootstrap=proxy.bootstrap, group=GROUP, source=SOURCE, instance_id="copier")
        members = _Members(member, folder / "member.log")
        opened.callback(members.close)
        members.start()
        load = _Load(direct)
        load.start()
        began_s = time.monotonic()
        killed = 0
        for number in range(ends):
            is_kill = killed < kills * (number + 1) // ends
            _delay_one_end(proxy, members, is_kill=is_kill)
            killed += is_kill
            if (number + 1) % NOTE_EVERY == 0:
                note(f"{number + 1} ends delayed, {killed} kills, {load.published:,} records")
        load.end()
        copies = _copies(direct, load.published)
        return TornResult(
            delayed=ends,
            killed=killed,
            published=load.published,
            lost=load.published - len(copies),
            twice=sum(count - 1 for count in copies.values()),
            took_s=time.monotonic() - began_s,
        )


def _delay_one_end(proxy: FaultProxy, members: _Members, *, is_kill: bool) -> None:
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


def _await(members: _Members, wait: Wait) -> None:
    until_s = time.monotonic() + WAIT_S
    while not wait(0.5):
        if members.has_ended:
            raise CarpoolError("the member ended by itself: see member.log")
        if time.monotonic() > until_s:
            raise CarpoolError(f"no such request came within {WAIT_S:g} s: see member.log")


def _copies(settings: KafkaSettings, wanted: int) -> Counter[bytes]:
    """Returns how often each record was copied, for readers of committed records.

    Waits for the copies of `wanted` records, as long as there are more of them every `WAIT_S`.
    """
    found: Counter[bytes] = Counter()
    until_s = time.monotonic() + WAIT_S
    with TopicReader(settings, SystemClock(), name="torn-audit") as reader:
        places = reader.partitions(copy_of(SOURCE))
        while len(found) < wanted and time.monotonic() < until_s:
            before = len(found)
            found = Counter(message.key or b"" for message in reader.read_to_end(places))
            if len(found) > before:
                until_s = time.monotonic() + WAIT_S
            time.sleep(SETTLE_S)
    return found


def show(console: Console, result: TornResult) -> None:
    """Prints the counts."""
    table = Table(show_header=False)
    for name, value in msgspec.structs.asdict(result).items():
        table.add_row(name.replace("_", " "), f"{value:,.0f}")
    console.print(table)

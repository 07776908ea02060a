"""The run of `carpool bench torn`: ends of transactions that arrive in a later transaction.

A proxy holds the request that ends a transaction, and cuts the connection. The grouper asks
again, and that request arrives. The held one is released while the next transaction is open:
brokers that took it for the end of that one would commit its records without its offsets (KIP-890,
librdkafka issue 5423).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from threading import Event

from bench.core.accounting import Accounting, account
from bench.core.kafka import fresh_folder
from bench.core.load import even
from bench.core.run import ServicesRun
from bench.core.session import SentLoad, Session, open_session
from bench.core.stack import ServiceProcess
from bench.data.index import BenchIndex
from bench.data.made_up import ENVIRONMENT, made_up_index, made_up_questions
from bench.reliability.fault_proxy import END_TXN, PRODUCE, TXN_OFFSET_COMMIT, FaultProxy
from bench.reliability.options import TornOptions
from carpool.errors import CarpoolError
from carpool.kafka.embedded import free_port
from carpool.testing.kafka import KafkaServer, free_ports
from schemas.codec import decode
from schemas.group import Group
from schemas.topics import GROUPS

BROKERS = 4
RATE_PER_S = 50.0
QUESTIONS_AT_ONCE = 100
"""The load ends after so many questions, or goes on."""
WAIT_S = 60.0
SETTLE_S = 0.03
"""For the broker to handle a released request."""
NOTE_EVERY = 50
SHORT_SESSIONS = {
    "group.consumer.session.timeout.ms": 1_000,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.heartbeat.interval.ms": 300,
}
"""A killed grouper gives its partitions up after a second."""


def run(options: TornOptions, brokers: int = BROKERS) -> bool:
    """Each broker has a proxy, a grouper and a load of its own, and its share of the ends."""
    run = ServicesRun("torn", options)
    index = made_up_index(run.folder)
    with ThreadPoolExecutor(brokers) as pool:
        found = list(pool.map(partial(measure, run, index, brokers), range(brokers)))
    result = {
        "published": sum(each.published for each in found),
        "lost": sum(each.missing for each in found),
        "twice": sum(each.duplicates for each in found),
    }
    promises = {
        "nothing lost": not result["lost"],
        "nothing torn and nothing twice, for readers of committed records": not result["twice"],
    }
    return run.finish(
        {"torn": {"found": result}}, promises=promises, results=result, index=index.facts
    )


def measure(run: ServicesRun, index: BenchIndex, brokers: int, number: int) -> Accounting:
    """Delays ends of transactions under a load on one broker, and reads all groups. Blocks.

    The grouper alone reaches the broker through the proxy.
    """
    folder = run.folder / f"broker-{number + 1}"
    ends, kills = (
        all_of_it // brokers + (number < all_of_it % brokers)
        for all_of_it in (run.options.ends, run.options.kills)
    )
    with ExitStack() as opened:
        data = opened.enter_context(fresh_folder(folder / "kafka"))
        ports = free_ports(advertised=free_port())
        opened.enter_context(KafkaServer(data, ports=[ports], settings=SHORT_SESSIONS))
        proxy = opened.enter_context(FaultProxy(ports.advertised, ports.clients))
        settings = {**ENVIRONMENT, **run.settings, "CARPOOL_KAFKA_BOOTSTRAP": proxy.bootstrap}
        address = f"127.0.0.1:{ports.brokers}"
        session = opened.enter_context(
            open_session(index.dir, folder, settings, services=("grouper",), bootstrap=address)
        )
        grouper, ending = session.stack["grouper"], Event()
        pool = opened.enter_context(ThreadPoolExecutor(1, "load"))
        opened.callback(ending.set)
        load = pool.submit(_send_until, ending, session)
        killed = 0
        for done in range(1, ends + 1):
            is_kill = killed < kills * done // ends
            _delay_one_end(proxy, grouper, is_kill=is_kill)
            killed += is_kill
            if done % NOTE_EVERY == 0:
                run.note(f"broker {number + 1}: {done} ends delayed, {killed} kills")
        ending.set()
        return _account(load.result(), session)


def _send_until(ending: Event, session: Session) -> SentLoad:
    questions = made_up_questions(QUESTIONS_AT_ONCE, are_vectors=False)
    sent: SentLoad = {}
    while not ending.is_set():
        sent |= session.send(questions, even(RATE_PER_S))
    return sent


def _account(sent: SentLoad, session: Session) -> Accounting:
    """Returns what became of the questions, when all are in a group or nothing more comes."""

    def found() -> Accounting:
        groups = session.recorder.records(GROUPS.name)
        decoded = (decode(Group, record.value, record.headers) for record in groups)
        return account(sent, (each.query.query_id for group in decoded for each in group.queries))

    until_s = time.monotonic() + WAIT_S
    while found().missing and time.monotonic() < until_s:
        time.sleep(1.0)
    time.sleep(1.0)  # for records that come twice
    return found()


def _delay_one_end(proxy: FaultProxy, grouper: ServiceProcess, *, is_kill: bool) -> None:
    """Delays the end of one transaction into the next one, and may kill the grouper in that one.

    A kill comes before the records of the later transaction are written.
    """
    end = proxy.hold(END_TXN)
    _await(grouper, end.wait)
    later = proxy.hold(PRODUCE if is_kill else TXN_OFFSET_COMMIT)
    proxy.cut()
    _await(grouper, later.wait)
    if is_kill:
        grouper.kill()
    end.release()
    time.sleep(SETTLE_S)
    later.release()
    if is_kill:
        grouper.start()


def _await(grouper: ServiceProcess, wait: Callable[[float], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not wait(0.5):
        if not grouper.is_running or time.monotonic() > until_s:
            raise CarpoolError(f"no such request came from the grouper: {grouper.log_tail()}")

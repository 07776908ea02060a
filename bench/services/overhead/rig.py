"""One contestant as processes: brokers, the three services, bare hops beside them, a load, and what
is read of both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil

from bench.core.accounting import Books
from bench.core.made_up import ENVIRONMENT, by_label, fresh_folder
from bench.core.session import Session, open_session
from bench.core.stack import SERVICES, Stack
from bench.data.index import BenchIndex
from bench.services.overhead.bare_rig import NAMES, open_bare_hops
from bench.services.overhead.contestants import Contestant
from bench.services.overhead.disturbance import between, snapshot
from bench.services.overhead.outcome import (
    Journey,
    Round,
    answer_books,
    bare_journeys,
    copy_books,
    journeys,
)
from carpool.testing.kafka import KAFKA_JAVA, KafkaCluster
from producers.read_questions import Question
from producers.send_load import LoadPlan, SentQuestion
from schemas.topics import ANSWERS, GROUPS, RETRIEVALS

STALLED_S = 60.0
SETTLE_S = 2.0

Outcome = tuple[Books, tuple[Journey, ...]]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Who is asked: the services, or the bare hops. `pids`: of its own processes, by name;
    `last_topic`: where it ends.
    """

    session: Session
    last_topic: str
    pids: dict[str, int]
    outcome: Callable[[Mapping[str, SentQuestion]], Outcome]
    commits: Callable[[], dict[str, float]]


class Rig:
    """A contestant that runs, and the bare hops on the same brokers. Made by `open_rig`. One side
    is asked at a time.
    """

    def __init__(self, carpool: Side, bare: Side, cluster: KafkaCluster, plan: LoadPlan) -> None:
        self.carpool = carpool
        self.bare = bare
        self._plan = plan
        self._brokers = {
            f"broker {number}": server.pid for number, server in enumerate(cluster.servers, start=1)
        }

    def warm_up(self, questions: Sequence[Question], rate_per_s: float) -> None:
        """Runs a load through each side that is not measured: caches fill, and the brokers' Java
        compiles what is used.
        """
        for side in (self.carpool, self.bare):
            side.session.ask(
                questions,
                self._plan,
                rate_per_s=rate_per_s,
                topics=(side.last_topic,),
                stalled_s=STALLED_S,
            )

    def measure(self, side: Side, questions: Sequence[Question], rate_per_s: float) -> Round:
        """Runs a load, question after question at its time, and returns what came of it. Blocks."""
        standby = self.bare if side is self.carpool else self.carpool
        pids = (
            side.pids | self._brokers | {"benchmark": psutil.Process().pid}
        )  # which sends and reads
        before = snapshot(pids.values())
        started_s, commits = time.monotonic(), side.commits()
        cpu, standby_cpu = _cpu_s(pids), _cpu_s(standby.pids)
        asked = side.session.ask(
            questions,
            self._plan,
            rate_per_s=rate_per_s,
            topics=(side.last_topic,),
            stalled_s=STALLED_S,
        )
        seconds = time.monotonic() - started_s
        cpu, standby_cpu = (
            _difference(_cpu_s(pids), cpu),
            _difference(_cpu_s(standby.pids), standby_cpu),
        )
        commits = _difference(side.commits(), commits)
        machine = between(before, snapshot(pids.values()))
        time.sleep(SETTLE_S)  # for what may come twice
        books, found = side.outcome(asked.sent)
        return Round(
            seconds=seconds,
            load=asked.summary,
            books=books,
            journeys=found,
            commits=commits,
            cpu_s=cpu,
            standby_cpu_s=sum(standby_cpu.values()),
            machine=machine,
        )


@contextmanager
def open_rig(
    contestant: Contestant, index: BenchIndex, *, folder: Path, settings: Mapping[str, str]
) -> Iterator[Rig]:
    """Yields the contestant and bare hops, ready for a load; all processes end with the block.
    Blocks for half a minute.
    """
    with (
        fresh_folder(folder / "kafka") as data,
        KafkaCluster(data, brokers=contestant.brokers, java=KAFKA_JAVA) as cluster,
        open_session(
            bootstrap=cluster.bootstrap,
            index_dir=index.dir,
            work_dir=folder,
            services=SERVICES,
            settings={**ENVIRONMENT, **settings, "CARPOOL_KAFKA_DELIVERY": contestant.delivery},
        ) as session,
        open_bare_hops(
            contestant.delivery, stack=session.stack, folder=folder, settings=settings
        ) as (
            bare_session,
            hops,
        ),
    ):
        carpool = Side(
            session=session,
            last_topic=ANSWERS.name,
            pids={name: session.stack[name].pid for name in SERVICES},
            outcome=lambda sent: _of_services(session, sent),
            commits=lambda: commits_of(session.stack),
        )
        bare = Side(
            session=bare_session,
            last_topic=NAMES[-1],
            pids={name: hop.pid for name, hop in hops.items()},
            outcome=lambda sent: _of_hops(bare_session, sent),
            commits=dict,
        )
        yield Rig(carpool, bare, cluster, LoadPlan(embedding_model=index.manifest.embedding_model))


def commits_of(stack: Stack) -> dict[str, float]:
    """Returns how many commits each service counts by outcome, under "SERVICE OUTCOME"."""
    return {
        f"{name} {outcome}": count
        for name in SERVICES
        for outcome, count in by_label(
            stack[name].samples(), "carpool_commits_total", "outcome"
        ).items()
    }


def _of_services(session: Session, sent: Mapping[str, SentQuestion]) -> Outcome:
    answers = session.reader.records(ANSWERS.name)
    found = journeys(
        sent,
        {
            "group": session.reader.records(GROUPS.name),
            "retrieval": session.reader.records(RETRIEVALS.name),
            "answer": answers,
        },
    )
    return answer_books(sent.keys(), answers), found


def _of_hops(session: Session, sent: Mapping[str, SentQuestion]) -> Outcome:
    copies = [session.reader.records(topic) for topic in NAMES[1:]]
    return copy_books(sent.keys(), copies[-1]), bare_journeys(sent, copies)


def _cpu_s(pids: Mapping[str, int]) -> dict[str, float]:
    """CPU time of processes so far."""
    return {name: _cpu_of(psutil.Process(pid)) for name, pid in pids.items()}


def _cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _difference(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in now.items()}

"""One contestant as processes: brokers, the three services, a load, and what is read beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.index import BenchIndex
from bench.kafka_runs import ENVIRONMENT, by_label, fresh_folder
from bench.overhead.outcome import Contestant, Round, answer_books, journeys
from bench.session import Session, open_session
from bench.stack import SERVICES, Stack
from carpool.testing.kafka import KafkaCluster
from producers.load import LoadPlan
from producers.questions import Question
from schemas.topics import ANSWERS, GROUPS, RETRIEVALS

STALLED_S = 60.0
SETTLE_S = 2.0


class Rig:
    """A contestant that runs. Made by `open_rig`."""

    def __init__(self, session: Session, cluster: KafkaCluster, plan: LoadPlan) -> None:
        self._session = session
        self._plan = plan
        self._pids = {name: session.stack[name].pid for name in SERVICES}
        self._pids |= {f"broker {number}": server.pid for number, server in enumerate(cluster.servers, start=1)}

    def warm_up(self, questions: Sequence[Question], rate_per_s: float) -> None:
        """Runs a load that is not measured: caches fill, and the brokers' Java compiles what is used."""
        self._session.ask(questions, self._plan, rate_per_s=rate_per_s, topics=(ANSWERS.name,), stalled_s=STALLED_S)

    def measure(self, questions: Sequence[Question], rate_per_s: float) -> Round:
        """Runs a load, question after question at its time, and returns what came of it. Blocks."""
        started_s, cpu, commits = time.monotonic(), self._cpu_s(), commits_of(self._session.stack)
        asked = self._session.ask(
            questions,
            self._plan,
            rate_per_s=rate_per_s,
            topics=(ANSWERS.name,),
            stalled_s=STALLED_S,
        )
        seconds = time.monotonic() - started_s
        cpu = _difference(self._cpu_s(), cpu)
        commits = _difference(commits_of(self._session.stack), commits)
        time.sleep(SETTLE_S)  # for what may come twice
        reader = self._session.reader
        return Round(
            seconds=seconds,
            load=asked.summary,
            books=answer_books(asked.sent.keys(), reader.records(ANSWERS.name)),
            journeys=journeys(
                asked.sent,
                {
                    "group": reader.records(GROUPS.name),
                    "retrieval": reader.records(RETRIEVALS.name),
                    "answer": reader.records(ANSWERS.name),
                },
            ),
            commits=commits,
            cpu_s=cpu,
        )

    def _cpu_s(self) -> dict[str, float]:
        """CPU time so far of the services, the brokers, and of this process: it sends and reads."""
        found = {name: _cpu_of(psutil.Process(pid)) for name, pid in self._pids.items()}
        return found | {"benchmark": _cpu_of(psutil.Process())}


@contextmanager
def open_rig(contestant: Contestant, index: BenchIndex, *, folder: Path, settings: Mapping[str, str]) -> Iterator[Rig]:
    """Yields the contestant, ready for a load; its brokers and services end with the block. Blocks for half a minute."""
    with (
        fresh_folder(folder / "kafka") as data,
        KafkaCluster(data, brokers=contestant.brokers) as cluster,
        open_session(
            bootstrap=cluster.bootstrap,
            index_dir=index.dir,
            work_dir=folder,
            services=SERVICES,
            settings={**ENVIRONMENT, **settings, "CARPOOL_KAFKA_DELIVERY": contestant.delivery},
        ) as session,
    ):
        yield Rig(session, cluster, LoadPlan(embedding_model=index.manifest.embedding_model))


def commits_of(stack: Stack) -> dict[str, float]:
    """Returns how many commits each service counts by outcome, under "SERVICE OUTCOME"."""
    return {
        f"{name} {outcome}": count
        for name in SERVICES
        for outcome, count in by_label(stack[name].samples(), "carpool_commits_total", "outcome").items()
    }


def _cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _difference(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in now.items()}

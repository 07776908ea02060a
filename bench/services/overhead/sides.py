"""A contestant as processes: brokers, the three services, and bare hops on the same brokers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil

from bench.core.accounting import Accounting, account
from bench.core.kafka import fresh_folder
from bench.core.session import SentLoad, Session, open_session
from bench.core.stack import SERVICES
from bench.data.index import BenchIndex
from bench.data.made_up import ENVIRONMENT
from bench.services.overhead.bare_chain import NAMES, open_bare_chain
from bench.services.overhead.contestants import DeliveryContestant
from bench.services.overhead.outcome import Journey, MeasuredLoad, journeys, reads, reads_of_groups
from bench.services.results import answer_accounting, answers_of
from carpool.testing.kafka import KAFKA_JAVA, KafkaCluster
from producers.read_questions import Question
from producers.send_load import LoadPlan, SentQuestion
from schemas.topics import ANSWERS, GROUPS, RETRIEVALS

SETTLE_S = 2.0

SideOutcome = tuple[Accounting, tuple[Journey, ...]]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """The services, or the bare hops. `pids`: by process name; `last_topic`: where it ends."""

    session: Session
    last_topic: str
    pids: dict[str, int]
    outcome: Callable[[Mapping[str, SentQuestion]], SideOutcome]


class BothSides:
    """The services and the bare hops on the same brokers; one is measured at a time."""

    def __init__(self, carpool: Side, bare: Side, cluster: KafkaCluster, plan: LoadPlan) -> None:
        self.carpool = carpool
        self.bare = bare
        self._plan = plan
        self._shared = {
            f"broker {number}": server.pid for number, server in enumerate(cluster.servers, start=1)
        } | {"benchmark": psutil.Process().pid}

    def warm_up(self, questions: Sequence[Question], rate_per_s: float) -> None:
        """Sends a load through each side that is not measured: the brokers' Java compiles."""
        for side in (self.carpool, self.bare):
            self._ask(side, questions, rate_per_s)

    def measure(self, side: Side, questions: Sequence[Question], rate_per_s: float) -> MeasuredLoad:
        """Sends a load through one side and returns the result. Blocks."""
        pids = side.pids | self._shared
        started_s, before = time.monotonic(), _cpu_s(pids)
        load = self._ask(side, questions, rate_per_s)
        seconds, after = time.monotonic() - started_s, _cpu_s(pids)
        time.sleep(SETTLE_S)  # for records that come twice
        accounting, found = side.outcome(load.sent)
        return MeasuredLoad(
            seconds=seconds,
            load=load.summary,
            accounting=accounting,
            journeys=found,
            cpu_s={name: after[name] - before[name] for name in pids},
        )

    def _ask(self, side: Side, questions: Sequence[Question], rate_per_s: float) -> SentLoad:
        return side.session.ask(
            questions, self._plan, rate_per_s=rate_per_s, topics=(side.last_topic,)
        )


@contextmanager
def open_sides(
    contestant: DeliveryContestant, index: BenchIndex, *, folder: Path, settings: Mapping[str, str]
) -> Iterator[BothSides]:
    """Yields both sides, ready for a load; all processes end with the block. Blocks for 30 s."""
    delivery = contestant.delivery
    with (
        fresh_folder(folder / "kafka") as data,
        KafkaCluster(data, brokers=contestant.brokers, java=KAFKA_JAVA) as cluster,
        open_session(
            bootstrap=cluster.bootstrap,
            index_dir=index.dir,
            work_dir=folder,
            services=SERVICES,
            settings={**ENVIRONMENT, **settings, "CARPOOL_KAFKA_DELIVERY": delivery},
        ) as session,
        open_bare_chain(delivery, stack=session.stack, folder=folder, settings=settings) as (
            bare_session,
            hops,
        ),
    ):
        carpool = Side(
            session=session,
            last_topic=ANSWERS.name,
            pids={name: session.stack[name].pid for name in SERVICES},
            outcome=lambda sent: _of_services(session, sent),
        )
        bare = Side(
            session=bare_session,
            last_topic=NAMES[-1],
            pids={name: hop.pid for name, hop in hops.items()},
            outcome=lambda sent: _of_hops(bare_session, sent),
        )
        plan = LoadPlan(embedding_model=index.manifest.embedding_model)
        yield BothSides(carpool, bare, cluster, plan)


def _of_services(session: Session, sent: Mapping[str, SentQuestion]) -> SideOutcome:
    groups, retrievals, answers = (
        session.recorder.records(topic) for topic in (GROUPS.name, RETRIEVALS.name, ANSWERS.name)
    )
    accounting = answer_accounting(sent.keys(), answers_of(answers, sent.keys()))
    return accounting, journeys(sent, (reads_of_groups(groups), reads(retrievals), reads(answers)))


def _of_hops(session: Session, sent: Mapping[str, SentQuestion]) -> SideOutcome:
    copies = [reads(session.recorder.records(topic)) for topic in NAMES[1:]]
    return account(sent, (query_id for query_id, _ in copies[-1])), journeys(sent, copies)


def _cpu_s(pids: Mapping[str, int]) -> dict[str, float]:
    times = {name: psutil.Process(pid).cpu_times() for name, pid in pids.items()}
    return {name: float(found.user + found.system) for name, found in times.items()}

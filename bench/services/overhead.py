"""The run of `carpool bench overhead`: the services and bare hops, in turn, on the same brokers."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec

from bench.core.accounting import Accounting, account, answer_accounting, answers_of
from bench.core.run import ServicesRun
from bench.core.session import SentLoad, Session, open_session
from bench.core.spread import Spread, spread
from bench.core.stack import ServiceProcess, clean_environment, cpu_s
from bench.data.index import BenchIndex
from bench.data.made_up import ENVIRONMENT, made_up_index, made_up_questions
from bench.services.options import OverheadOptions
from carpool.kafka.checks import DeliveryName
from producers.arrival_times import even
from producers.read_questions import Question
from producers.send_load import LoadPlan
from schemas.topics import ANSWERS, GROUPS, QUERIES, RETRIEVALS

PREFIX = "bare-hops"
"""Of the topics of the hops, which are as those of the services."""
HOPS = tuple(pairwise(topic.name for topic in (QUERIES, GROUPS, RETRIEVALS, ANSWERS)))
TURNS = (0, 1, 1, 0)
"""Which side is measured, in turn: drift of the machine meets both sides alike."""
SETTLE_S = 2.0
WATCHED = (ANSWERS.name,)


class DeliveryContestant(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery on `brokers` brokers, and the bounds of a question's total time in ms."""

    delivery: DeliveryName
    brokers: int
    p50_ms_max: float
    p99_ms_max: float = float("inf")


CONTESTANTS = {
    "exactly-once-1": DeliveryContestant(
        delivery="exactly_once", brokers=1, p50_ms_max=60, p99_ms_max=150
    ),
    "exactly-once-3": DeliveryContestant(delivery="exactly_once", brokers=3, p50_ms_max=120),
    "at-least-once-1": DeliveryContestant(delivery="at_least_once", brokers=1, p50_ms_max=25),
}


class SideResult(msgspec.Struct, frozen=True, kw_only=True):
    """All loads of the services, or of the bare hops.

    `total_ms`: from when a question was due until its last record was read. `cpu_ms_a_question` and
    `cores` count the brokers and this process too.
    """

    accounting: Accounting
    total_ms: Spread | None
    cpu_ms_a_question: float
    cores: float


def run(options: OverheadOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Raises `CarpoolError`."""
    run = ServicesRun("overhead", options)
    index = made_up_index(run.folder)
    found: dict[str, tuple[SideResult, SideResult]] = {}
    for name, contestant in CONTESTANTS.items():
        run.note(name)
        with _open_sides(contestant, index, run.settings, run.folder / name) as sides:
            found[name] = _measure(sides, index, options)
    return run.finish(
        {
            name: dict(zip(("Carpool", "bare hops"), results, strict=True))
            for name, results in found.items()
        },
        promises=promises(found),
        results=found,
        index=index.facts,
    )


def promises(found: Mapping[str, tuple[SideResult, SideResult]]) -> dict[str, bool]:
    """Returns each promise and whether it was kept; of bare hops, what makes them a baseline."""
    kept: dict[str, bool] = {}
    for name, (ours, bare) in found.items():
        bounds, total = CONTESTANTS[name], ours.total_ms
        kept[f"{name}: p50 at most {bounds.p50_ms_max:g}, p99 {bounds.p99_ms_max:g} ms"] = (
            total is not None and total.p50 <= bounds.p50_ms_max and total.p99 <= bounds.p99_ms_max
        )
        kept[f"{name}: each question has one answer"] = ours.accounting.holds
        kept[f"{name}: bare hops copied each question once"] = bare.accounting.holds
    return kept


@dataclass(kw_only=True)
class _Side:
    """The services, or the bare hops, whose answers are copies, and what was measured."""

    session: Session
    is_bare: bool
    pids: Sequence[int]
    sent: SentLoad = field(default_factory=dict)
    cpu_s: float = 0.0
    seconds: float = 0.0

    def ask(self, questions: Sequence[Question], plan: LoadPlan, rate_per_s: float) -> SentLoad:
        """Sends a load through it and waits for the answers."""
        return self.session.ask(questions, plan, even(rate_per_s), topics=WATCHED)

    def measure(self, questions: Sequence[Question], plan: LoadPlan, rate_per_s: float) -> None:
        """Sends a load and keeps what it took. Blocks."""
        began_s, before_s = time.monotonic(), cpu_s(self.pids)
        self.sent |= self.ask(questions, plan, rate_per_s)
        self.seconds += time.monotonic() - began_s
        self.cpu_s += cpu_s(self.pids) - before_s
        time.sleep(SETTLE_S)  # for records that come twice

    def result(self) -> SideResult:
        """Returns all loads together."""
        every, ids = self.session.recorder.records(ANSWERS.name), self.sent.keys()
        records = [record for record in every if record.key in ids]
        read_us = {record.key: record.received_us for record in reversed(records)}
        return SideResult(
            accounting=account(ids, (record.key for record in records))
            if self.is_bare
            else answer_accounting(ids, answers_of(records, ids)),
            total_ms=spread(
                (at - self.sent[key].intended_us) / 1_000 for key, at in read_us.items()
            ),
            cpu_ms_a_question=self.cpu_s * 1_000 / max(1, len(read_us)),
            cores=self.cpu_s / self.seconds,
        )


def _measure(
    sides: tuple[_Side, _Side], index: BenchIndex, options: OverheadOptions
) -> tuple[SideResult, SideResult]:
    """Warms both sides up, until Java has compiled, and measures them in turn. Blocks."""
    plan, rate_per_s = LoadPlan(embedding_model=index.manifest.embedding_model), options.rate_per_s
    if warm_up := made_up_questions(round(rate_per_s * options.warm_up_s)):
        for side in sides:
            side.ask(warm_up, plan, rate_per_s)
    questions = made_up_questions(max(1, round(rate_per_s * options.seconds / 2)))
    for turn in TURNS:
        sides[turn].measure(questions, plan, rate_per_s)
    return sides[0].result(), sides[1].result()


@contextmanager
def _open_sides(
    contestant: DeliveryContestant, index: BenchIndex, given: Mapping[str, str], folder: Path
) -> Iterator[tuple[_Side, _Side]]:
    """Yields the services and the bare hops, ready for a load. Blocks for 30 s."""
    settings = {**ENVIRONMENT, **given, "CARPOOL_KAFKA_DELIVERY": contestant.delivery}
    with (
        open_session(index.dir, folder, settings, brokers=contestant.brokers) as session,
        _open_hops(session, settings, folder) as (hops, hop_pids),
    ):
        shared = [server.pid for server in session.brokers] + [os.getpid()]
        yield (
            _Side(session=session, is_bare=False, pids=[*session.pids, os.getpid()]),
            _Side(session=hops, is_bare=True, pids=hop_pids + shared),
        )


@contextmanager
def _open_hops(
    services: Session, settings: Mapping[str, str], folder: Path
) -> Iterator[tuple[Session, list[int]]]:
    """Yields a session through three bare hops, and their process ids."""
    bootstrap, pids = services.stack.bootstrap, []
    own = {**settings, "CARPOOL_KAFKA_BOOTSTRAP": bootstrap, "CARPOOL_KAFKA_PREFIX": PREFIX}
    opening = open_session(Path(), folder, own, services=(), bootstrap=bootstrap, topics=WATCHED)
    with ExitStack() as opened:
        session = opened.enter_context(opening)
        for source, target in HOPS:
            process = ServiceProcess(
                [sys.executable, "-m", "bench.services.bare_hop", source, target],
                environ=clean_environment() | own,
                log_file=folder / f"bare-hop-{source}.log",
            )
            process.start()
            opened.callback(process.stop)
            pids.append(process.pid)
        session.ask([Question(text="the first")], LoadPlan(), even(1), topics=WATCHED)
        yield session, pids

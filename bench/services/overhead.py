"""The run of `carpool bench overhead`: the services and bare hops, in turn, on the same brokers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count, pairwise, product
from math import inf
from pathlib import Path
from statistics import fmean

import msgspec

from bench.core.accounting import Accounting, account, answer_accounting
from bench.core.cpu import COMPILERS, CpuMeter
from bench.core.load import even
from bench.core.machine import revision_of
from bench.core.run import ServicesRun
from bench.core.session import SentLoad, Session, open_session
from bench.core.spread import Spread, spread
from bench.core.stack import ServiceProcess, clean_environment
from bench.data.index import BenchIndex
from bench.data.made_up import ENVIRONMENT, MODEL, made_up_index, made_up_questions
from bench.services.options import OverheadOptions
from carpool.errors import ConfigError
from producers.build_query import QuestionArgs
from schemas.topics import ANSWERS, GROUPS, QUERIES, RETRIEVALS

NO_LLM, LOAD = "no LLM", "load and reader"
NOT_COUNTED = (COMPILERS, LOAD, "llm")
"""Not a part of the way of a question, the stand-in for the LLM too."""
HOPS = tuple(pairwise(topic.name for topic in (QUERIES, GROUPS, RETRIEVALS, ANSWERS)))
BOUND_PER_S, BACKLOG_PER_S, BACKLOG_A_S = 200.0, 4_000.0, 100
"""The rate at which times are promised without an LLM. The rate at which a backlog is published,
and its questions for each second of `--seconds`."""
WATCHED = (ANSWERS.name,)
WITH_LLM = {
    "CARPOOL_EMBEDDING_MODEL": MODEL,
    "CARPOOL_GENERATOR_PASSAGES_MAX": "100",
    "CARPOOL_GENERATOR_PROMPT_CHARS_MAX": "100000",
}
"""Settings of services with an LLM: a prompt has all passages that a question asks for."""


CONTESTANTS = {"exactly-once-1": (1, 60.0, 150.0), "exactly-once-3": (3, 120.0, inf)}
"""Brokers, and the bounds of the p50 and the p99 of a question's total time in ms."""


class SideResult(msgspec.Struct, frozen=True, kw_only=True):
    """One load of one side: the bare hops, or the services with prompts of one size.

    `total_ms`: from when a question was due until its answer was read. `cpu_ms`: of a
    question, by process, without `idle_ms`, which these processes take in as many idle seconds, and
    without `not_counted_ms`. `over_bare_hops`: their sum, over that of the bare hops. `cores`: of
    all.
    """

    accounting: Accounting
    total_ms: Spread | None
    prompt_ids: float
    cpu_ms_a_question: float
    over_bare_hops: float
    cpu_ms: dict[str, float]
    idle_ms: float
    not_counted_ms: dict[str, float]
    cores: float


Found = Mapping[str, Mapping[str, Mapping[str, SideResult]]]
"""Results by contestant, load and side."""


def run(options: OverheadOptions) -> bool:
    if unknown := {*options.contestant} - CONTESTANTS.keys():
        raise ConfigError(f"--contestant {unknown}: there are {', '.join(CONTESTANTS)}")
    run = ServicesRun("overhead", options)
    index = made_up_index(run.folder)
    found: dict[str, dict[str, dict[str, SideResult]]] = {}
    for name in options.contestant or CONTESTANTS:
        run.note(name)
        with open_sides(name, index, options, run) as sides:
            for load, results in _measure(sides, options):
                run.note(f"{name}, {load}: measured")
                found.setdefault(name, {})[load] = results
    return run.finish(
        {f"{name}, {load}": each for name, loads in found.items() for load, each in loads.items()},
        promises=promises(found),
        results=found,
        index=index.facts,
        other_revision=options.other_revision and revision_of(options.other_revision),
    )


def promises(found: Found) -> dict[str, bool]:
    """Returns each promise and whether it was kept."""
    kept: dict[str, bool] = {}
    for name, loads in found.items():
        (_, p50, p99), bound = CONTESTANTS[name], loads.get(load_name(BOUND_PER_S), {}).get(NO_LLM)
        if bound is not None:
            total = bound.total_ms
            kept[f"{name}: p50 at most {p50:g}, p99 {p99:g} ms"] = (
                total is not None and total.p50 <= p50 and total.p99 <= p99
            )
        kept[f"{name}: each question has one answer, or one copy by bare hops"] = all(
            result.accounting.holds for sides in loads.values() for result in sides.values()
        )
    return kept


def load_name(rate_per_s: float) -> str:
    return f"{rate_per_s:g} a second" if rate_per_s else "a backlog"


@dataclass
class Side:
    """The bare hops, whose answers are copies, or services, and what was measured of one load."""

    name: str
    session: Session
    processes: Mapping[str, Sequence[int]]
    asked: QuestionArgs

    def __post_init__(self) -> None:
        self._numbers = count()
        self.begin()

    def begin(self) -> None:
        """Begins a load, of one or several turns."""
        self._sent: SentLoad = {}
        self._meter = CpuMeter(self.processes)

    def measure(self, rate_per_s: float, seconds: float) -> None:
        """Sends questions that it has not had, for `seconds`, and adds what they took. Blocks."""
        different = made_up_questions(max(1, round((rate_per_s or BACKLOG_A_S) * seconds)))
        questions = [
            msgspec.structs.replace(one, text=f"{one.text} {self.name} {next(self._numbers)}")
            for one in different
        ]
        times_us = even(rate_per_s or BACKLOG_PER_S)
        self._meter.start()
        sent = self.session.send(questions, times_us, **self.asked)
        self.session.recorder.wait(sent.keys())
        self._sent |= sent
        self._meter.stop()  # by its end, records that come twice have come

    def result(self, bare_ms: float | None) -> SideResult:
        """Returns all turns of the load. `bare_ms`: of the bare hops; None: these are they."""
        sent, meter, is_bare = self._sent, self._meter, bare_ms is None
        records = self.session.recorder.records(ANSWERS.name)
        answers = [] if is_bare else self.session.answers(sent)
        total_ms = self.session.answered_ms(sent)
        a_question = 1_000 / max(1, len(total_ms))
        ms = {name: used_s * a_question for name, used_s in meter.work_s.items()}
        counted = {name: each for name, each in ms.items() if name not in NOT_COUNTED}
        cpu_ms = sum(counted.values())
        return SideResult(
            accounting=account(sent, (record.key for record in records))
            if is_bare
            else answer_accounting(sent, answers),
            total_ms=spread(total_ms.values()),
            prompt_ids=fmean([one.usage.input_tokens for one in answers if one.usage] or [0.0]),
            cpu_ms_a_question=cpu_ms,
            over_bare_hops=cpu_ms / (bare_ms or cpu_ms),
            cpu_ms=counted,
            idle_ms=sum(meter.idle_s[name] for name in counted) * a_question,
            not_counted_ms={name: each for name, each in ms.items() if name in NOT_COUNTED},
            cores=sum((*meter.work_s.values(), *meter.idle_s.values())) / meter.seconds,
        )


def _measure(
    sides: Sequence[Side], options: OverheadOptions
) -> Iterator[tuple[str, dict[str, SideResult]]]:
    """Warms all sides up, until Java has compiled; yields each load, measured in turn. Blocks."""
    for side in sides:
        side.measure(max(options.rate_per_s), options.warm_up_s / len(sides))
    for rate_per_s in options.rate_per_s:
        for side in sides:
            side.begin()
        for side in (*sides, *reversed(sides)):  # drift of the machine meets all sides alike
            side.measure(rate_per_s, options.seconds / 2)
        bare, *others = sides
        found = {bare.name: bare.result(None)}
        bare_ms = found[bare.name].cpu_ms_a_question
        yield load_name(rate_per_s), found | {each.name: each.result(bare_ms) for each in others}


@contextmanager
def open_sides(
    name: str, index: BenchIndex, options: OverheadOptions, run: ServicesRun
) -> Iterator[list[Side]]:
    """Yields the bare hops and the services, ready for a load. Blocks for a minute."""
    (brokers, *_), folder = CONTESTANTS[name], run.folder / name
    settings = {**run.settings, "CARPOOL_KAFKA_DELIVERY": "exactly_once"}
    asked: QuestionArgs = {"embedding_model": index.manifest.embedding_model}
    with ExitStack() as opened:
        session = opened.enter_context(
            open_session(Path(), folder, settings, services=(), brokers=brokers, topics=WATCHED)
        )
        bootstrap = session.stack.bootstrap
        shared = {"broker": [each.pid for each in session.brokers], LOAD: [os.getpid()]}
        hops = opened.enter_context(bare_hops(HOPS, bootstrap, settings, folder))
        sides = [Side("bare hops", session, {"hops": hops} | shared, asked)]
        checkouts = dict.fromkeys((None, options.other_revision))
        for checkout, has_llm in product(checkouts, (False, True)):
            passages = [each for each in options.passages if bool(each) is has_llm]
            if not passages:
                continue
            whose = "other revision, " if checkout else ""
            prefix = f"{whose[:5]}{'llm' if has_llm else 'none'}"
            own = {**(WITH_LLM if has_llm else ENVIRONMENT), "CARPOOL_KAFKA_PREFIX": prefix}
            session = opened.enter_context(
                open_session(
                    index.dir,
                    folder / prefix,
                    own | settings,
                    bootstrap=bootstrap,
                    topics=WATCHED,
                    python_path=checkout and checkout.resolve(),
                )
            )
            pids = {each: [one.pid] for each, one in session.stack.processes.items()}
            for top_k in passages:
                side = whose + (f"{top_k} passages" if top_k else NO_LLM)
                sides.append(Side(side, session, pids | shared, {**asked, "top_k": top_k or None}))
        yield sides


@contextmanager
def bare_hops(
    hops: Sequence[tuple[str, str]], bootstrap: str, settings: Mapping[str, str], folder: Path
) -> Iterator[list[int]]:
    """Yields the process ids of hops from topic to topic, and ends them."""
    with ExitStack() as opened:
        started = [
            ServiceProcess(
                [sys.executable, "-m", "bench.services.bare_hop", source, target],
                environ={**clean_environment(), **settings, "CARPOOL_KAFKA_BOOTSTRAP": bootstrap},
                log_file=folder / f"bare-hop-{source}.log",
            )
            for source, target in hops
        ]
        yield [opened.enter_context(each).pid for each in started]

"""The loads of `carpool bench paper hedrarag`: offline, at rising rates, and with a kill."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle, repeat
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
import numpy as np

from bench.core.accounting import Accounting, answer_accounting
from bench.core.cpu import COMPILERS, CpuMeter
from bench.core.load import poisson
from bench.core.run import figures
from bench.core.session import SentLoad, Session
from bench.core.spread import Spread, spread
from bench.core.stack import ServiceProcess
from bench.papers.hedrarag.contestants import kill_and_restart
from bench.papers.options import HedraRagOptions
from producers.read_questions import Question
from schemas.answer import Answer

BROKER = "broker"
FIVE = ("hyde", "multistep", "irg", "recomp", "corrective")
MIXED, STEPS = "mixed", "steps"
LOADS = {MIXED: FIVE, STEPS: ("one_shot", *FIVE)} | {name: (name,) for name in FIVE}
"""The workflows of a load, one question each in turn."""
OFFLINE = 64
"""Questions of an offline load."""
RATE_MIN_PER_S, RATE_MAX_PER_S = 0.25, 200.0
DRAIN_S = 120.0
RESAMPLES = 1_000
KILL_PER_S, KILL_QUESTIONS = 2.0, 40


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One load; `rate_per_s` 0: offline. `latency_s`: from when a question was due to its answer.

    `texts`: generated for the answers. By workflow: `p50_s`, and `steps`: the mean number of its
    rounds and its answer. CPU is without `idle_ms`, what the processes take in as many idle
    seconds; `with_broker_ms` has the broker too. `read_mb_a_question`: by its processes, from a
    disk. The 95 % intervals resample latencies as if they did not depend on each other.
    """

    rate_per_s: float
    accounting: Accounting
    texts: int
    took_s: float
    latency_s: Spread | None
    p50_interval_s: tuple[float, ...]
    p99_interval_s: tuple[float, ...]
    searches_per_s: float
    read_mb_a_question: float
    p50_s: dict[str, float]
    steps: dict[str, float]
    cpu_ms_a_question: float
    with_broker_ms: float
    cpu_ms: dict[str, float]
    idle_ms: float

    def holds(self, slo_s: float) -> bool:
        """Whether each question has an answer, and 99 of 100 within the SLO."""
        return self.accounting.holds and self.latency_s is not None and self.latency_s.p99 <= slo_s


class Loads:
    """Asks questions: for each load the same ones of every contestant, with new ids."""

    def __init__(
        self, texts: Sequence[str], options: HedraRagOptions, note: Callable[[str], None]
    ) -> None:
        """`note` gets a line for each load."""
        self._texts, self._seed, self._options, self._note = texts, options.seed, options, note
        self._run = 0

    def ask(
        self,
        session: Session,
        name: str,
        rate_per_s: float,
        count: int,
        halfway: Callable[[], None] | None = None,
    ) -> Load:
        """Sends Poisson arrivals, and waits for the answers. `halfway`: is called after half."""
        questions = self._questions(name, rate_per_s, count)
        own = {name: [each.pid] for name, each in session.stack.processes.items()}
        meter = CpuMeter({**own, BROKER: [each.pid for each in session.brokers]})
        meter.start()
        read_before = read_bytes(session)
        began_s, sent = time.monotonic(), SentLoad()
        for part in (questions[: count // 2], questions[count // 2 :]) if halfway else (questions,):
            if sent and halfway:
                halfway()
            times_us = poisson(rate_per_s, self._seed) if rate_per_s else repeat(0)
            sent |= session.send(part, times_us)
        session.recorder.wait(sent.keys(), stalled_s=DRAIN_S)
        took_s = time.monotonic() - began_s
        meter.stop()  # by its end, answers that come twice have come
        read_mb = sum((read_bytes(session) - read_before).values()) / 1e6 / count
        found = self._load(
            session,
            sent,
            meter,
            rate_per_s=rate_per_s,
            took_s=took_s,
            read_mb_a_question=read_mb,
        )
        self._note(f"{name}: {dict(figures(found))}")
        return found

    def _load(self, session: Session, sent: SentLoad, meter: CpuMeter, **given: float) -> Load:
        answers = session.answers(sent)
        first = {answer.query_id: answer for answer in reversed(answers)}
        took_s = {key: ms / 1e3 for key, ms in session.answered_ms(sent).items()}
        keys: dict[str, list[str]] = {}
        for key in first:
            keys.setdefault(key.partition(" ")[0], []).append(key)
        cpu_ms = {name: 1e3 * used_s / len(sent) for name, used_s in meter.work_s.items()}
        del cpu_ms[COMPILERS]
        return Load(
            accounting=answer_accounting(sent, answers),
            texts=sum(map(texts_of, first.values())),
            latency_s=spread(took_s.values()),
            p50_interval_s=interval([*took_s.values()], 50),
            p99_interval_s=interval([*took_s.values()], 99),
            searches_per_s=sum(map(searches_of, first.values())) / given["took_s"],
            p50_s={name: median(took_s[key] for key in own) for name, own in keys.items()},
            steps={name: fmean(steps_of(first[key]) for key in own) for name, own in keys.items()},
            cpu_ms_a_question=sum(cpu_ms.values()) - cpu_ms[BROKER],
            with_broker_ms=sum(cpu_ms.values()),
            cpu_ms=cpu_ms,
            idle_ms=1e3 * sum(meter.idle_s[name] for name in cpu_ms) / len(sent),
            **given,
        )

    def curve(self, session: Session, name: str) -> dict[str, Any]:
        """Asks offline, then at rates from 0.4 of that up to the first over the SLO. Blocks."""
        slo_s, loads = self._options.slo_s, [self.ask(session, name, 0.0, OFFLINE)]
        offline_per_s = OFFLINE / loads[0].took_s
        for rate_per_s in rates(0.4 * offline_per_s, self._options.rate_step):
            count = max(self._options.questions, round(rate_per_s * self._options.seconds))
            loads.append(self.ask(session, name, rate_per_s, count))
            if not loads[-1].holds(slo_s):
                break
        best = max(
            (one for one in loads[1:] if one.holds(slo_s)),
            key=lambda one: one.rate_per_s,
            default=None,
        )
        return {
            "offline_per_s": offline_per_s,
            "at_slo": best,  # the load at the highest rate within the SLO
            "loads": tuple(loads),
        }

    def kill(self, session: Session, llm: ServiceProcess) -> dict[str, float]:
        """Kills the contestant in the middle of a mixed load, and starts it again. Blocks.

        `paid_twice`: calls beyond one for each text that an answer needed.
        """
        before, restart = _calls(llm), partial(kill_and_restart, session)
        load = self.ask(session, MIXED, KILL_PER_S, KILL_QUESTIONS, halfway=restart)
        return {
            "questions": load.accounting.published,
            "lost": load.accounting.missing,
            "answered_twice": load.accounting.duplicates,
            "texts": load.texts,
            "paid_twice": _calls(llm) - before - load.texts,
        }

    def _questions(self, load: str, rate_per_s: float, count: int) -> list[Question]:
        self._run += 1
        drawn = random.Random(f"{self._seed} {load} {rate_per_s}").sample(self._texts, count)
        return [
            Question(id=f"{workflow} {self._run} {at}", text=text, workflow=workflow)
            for at, (text, workflow) in enumerate(zip(drawn, cycle(LOADS[load]), strict=False))
        ]


def texts_of(answer: Answer) -> int:
    """Returns how many texts were generated for an answer, with its own."""
    return 1 + sum(step.kind == "generate" for step in answer.steps)


def by_rate(curve: Mapping[str, Any]) -> dict[str, str]:
    """Returns p50 and p99 in seconds with their intervals, searches a second and MB a question."""
    return {
        f"{load.rate_per_s:.3g} a second": "; ".join(
            (
                f"{load.latency_s.p50:.2f} {[*load.p50_interval_s]}",
                f"{load.latency_s.p99:.2f} {[*load.p99_interval_s]}",
                f"{load.searches_per_s:.1f}",
                f"{load.read_mb_a_question:.1f}",
            )
        )
        for load in curve["loads"]
        if load.latency_s is not None
    }


def searches_of(answer: Answer) -> int:
    """Returns how many searches were made for an answer."""
    return sum(step.kind == "retrieve" for step in answer.steps)


def rates(above_per_s: float, step: float) -> list[float]:
    """Returns the rates above one, the same for all contestants, `step` times the one before."""
    count = int(math.log(RATE_MAX_PER_S / RATE_MIN_PER_S, step))
    every = [RATE_MIN_PER_S * step**number for number in range(count)]
    return [rate for rate in every if rate > above_per_s]


def interval(values: Sequence[float], percent: float) -> tuple[float, ...]:
    """Returns the 95 % interval of a percentile; empty without values."""
    if not values:
        return ()
    drawn = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
    ends = np.percentile(np.percentile(drawn, percent, axis=1), (2.5, 97.5))
    return tuple(round(float(end), 3) for end in ends)


def read_bytes(session: Session) -> Counter[int]:
    """Returns the bytes that each process of a contestant has read from a disk."""
    found = Counter[int]()
    for process in session.stack.processes.values():
        lines = Path(f"/proc/{process.pid}/io").read_text(encoding="ascii").splitlines()
        found[process.pid] = int(dict(line.split(": ", 1) for line in lines)["read_bytes"])
    return found


def steps_of(answer: Answer) -> int:
    """Returns the rounds of an answer, with its own."""
    return 1 + max((step.n for step in answer.steps), default=1)


class _Calls(msgspec.Struct):
    started: int


def _calls(llm: ServiceProcess) -> int:
    """Returns the requests that the server has begun."""
    return msgspec.json.decode(llm.page("/_requests")[1].encode(), type=_Calls).started
